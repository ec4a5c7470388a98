"""Token mixers: the part of a layer through which tokens see each other.

Every architecture brings its own attention. `model.mixers = "gdn gdn gdn attention"` gives the
layers other mixers by name, in turn; they keep the architecture's residual rule, matrices and
constraint. A mixer is a module with

| member | meaning |
|---|---|
| `M(config, W)` | builds it; `W` (`parts.Matrices`) makes matrices as the architecture does |
| `forward(x, context)` | x [batch, time, d] -> [batch, time, d] |
| `init_state(batch, length)` | an empty decoding state of this layer, for up to `length` tokens |
| `reorder(state, rows)` | the state of these rows [n] int64 of the batch; a row may occur twice |
| `flops(context, causal)` | operations per token, forward and backward, without its weights' |
| `tp_plan` | how tensor parallel shards its parts (`models.plans`) |
| `bidirectional` | whether a token may also see what is after it, and any mask |

While a model decodes, `context.state` is what `init_state` made for the layer, and `forward`
updates it in place, its tensors or its attributes; otherwise it is None. What the tokens are is in
the context too: `context.real` [batch, time] is false for padding, which must leave no trace in the
state; `context.documents` [batch, time] numbers documents that must not see each other (to a
recurrence a document is a run of equal numbers);
`context.past` counts the tokens before these. Each is None where there is nothing to say. A state
may have any size: attention's grows with the text, a recurrence's is constant.

A new mixer is one file in this folder and one line in `MIXERS`; tests/protocols has an example.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.models.config import ModelConfig
from unitsphere.models.context import Context
from unitsphere.models.mixers.gdn import GatedDeltaNet
from unitsphere.models.mixers.gla import GatedLinearAttention
from unitsphere.models.mixers.mamba2 import Mamba2
from unitsphere.models.parts import Matrices

ATTENTION = "attention"
"""The mixer that an architecture brings."""


class Mixer(Protocol):
    """The members of the table above."""

    bidirectional: bool

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        """The layer's output, before the architecture's residual step."""
        ...

    def init_state(self, batch: int, length: int) -> Any:
        """The state of `batch` rows that have no tokens yet."""
        ...

    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The state of the chosen rows."""
        ...

    def flops(self, context: int, causal: bool) -> float:
        """Operations per token in sequences of `context` tokens."""
        ...


MIXERS: dict[str, Callable[[Any, Matrices], Any]] = {
    "gdn": GatedDeltaNet,
    "mamba2": Mamba2,
    "gla": GatedLinearAttention,
}
"""Mixers by name, in addition to each architecture's own attention."""


def mixer_names(config: ModelConfig) -> list[str]:
    """The mixer of each layer; a `UserError` for a name that is not known."""
    names = config.mixers.split()
    known = [ATTENTION, *MIXERS]
    if not names:
        raise UserError("model.mixers names no mixer: give one or more, such as attention")
    for name in names:
        if name not in known:
            raise UserError(f"model.mixers has no mixer '{name}'{did_you_mean(name, known)}")
    return [names[layer % len(names)] for layer in range(config.n_layers)]


def build_mixer(
    config: Any, layer: int, W: Matrices, attention: Callable[[Any, Matrices], Any]
) -> Any:
    """The mixer of a layer; `attention` is the architecture's own."""
    return (MIXERS | {ATTENTION: attention})[mixer_names(config)[layer]](config, W)
