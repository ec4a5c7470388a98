"""How a module is cut where several processes share its matrix products (tensor parallel).

A module that has parts to cut answers `cuts` with a `Cut` for each of them by its local name;
whatever is not named is whole in every process. What each process computes between a matrix cut
by columns and one cut by rows is its own: some of the heads, or of the hidden units.

| cut | part | cut along | input | output |
|---|---|---|---|---|
| columns | Linear | d_out (rows of W) | whole | own outputs |
| rows | Linear | d_in | own inputs | whole, a sum over processes |
| vocabulary | Embedding, head, s_z | its entries | whole | whole; of the head own logits |
| heads | scales and gains a head | heads | | own heads |
| units | scales of hidden units | units | | for a Linear cut by columns |
| gathered | norms over all heads or units | nothing | gathered | own part |
"""

from typing import Literal, Protocol, runtime_checkable

Cut = Literal["columns", "rows", "vocabulary", "heads", "units", "gathered"]


@runtime_checkable
class Cuts(Protocol):
    """A module with parts that can be cut."""

    cuts: dict[str, Cut]


@runtime_checkable
class Headed(Cuts, Protocol):
    """An attention: cut, a process has some of its heads."""

    n_heads: int
    n_kv_heads: int
