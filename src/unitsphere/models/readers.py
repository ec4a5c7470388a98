"""Where a block's sublayers take h, for whoever wants to see it between them.

A block answers `readers`: sublayer -> its module that is given h itself, which is the norm before
the sublayer or, without one, the sublayer. Sublayers are in the order in which h passes them, and
have the names of their modules: attention, cross (in a decoder that looks at a memory), mlp.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Readers(Protocol):
    """A block that says where its sublayers take h."""

    readers: dict[str, str]
