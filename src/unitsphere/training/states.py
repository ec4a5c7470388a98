"""What an optimizer keeps of each weight, and whether that is what a checkpoint has.

| tensor | its shape | of |
|---|---|---|
| exp_avg, exp_avg_sq | the weight's | Adam |
| momentum_buffer | the weight's | Muon |
| step | scalar | Adam |
| what a `StepHook` remembers | scalar | that |

A checkpoint may come from somebody else: torch would take any names, and fail in the next step.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.training.hooks import attached

ADAM = frozenset({"exp_avg", "exp_avg_sq", "step"})
MUON = frozenset({"momentum_buffer"})
MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer"})


def kept_of(optimizer: Optimizer) -> dict[Tensor, frozenset[str]]:
    """Weight -> the names of all that is kept of it once it has been stepped."""
    found: dict[Tensor, frozenset[str]] = {}
    for group in optimizer.param_groups:
        found |= dict.fromkeys(group["params"], MUON if "momentum" in group else ADAM)
    for hook in attached(optimizer):
        for weight, names in hook.remembers().items():
            if weight in found:
                found[weight] |= names
    return found


def check_states(
    folder: Path,
    stored: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    optimizer: Optimizer,
) -> None:
    """Raise UserError unless `stored`, `optim.<parameter>.<state>` -> a tensor of that shape and
    dtype, is all or nothing of what the optimizer keeps of each of `parameters`.
    """
    found: dict[str, set[str]] = {}
    for name, tensor in stored.items():
        parameter, _, key = name.removeprefix("optim.").rpartition(".")
        found.setdefault(parameter, set()).add(key)
        weight = parameters.get(parameter)
        if weight is None or not fits(key, tensor, weight):
            raise UserError(f"checkpoint {folder} does not fit the optimizer at {name}")
    kept = kept_of(optimizer)
    for parameter, keys in found.items():
        odd = keys ^ kept.get(parameters[parameter], frozenset())
        if odd:
            raise UserError(
                f"checkpoint {folder} does not fit the optimizer at optim.{parameter}.{min(odd)}: "
                "only one of the two has it"
            )


def fits(key: str, tensor: Tensor, weight: Tensor) -> bool:
    """Whether a tensor may be a weight's state `key`."""
    shape = weight.shape if key in MOMENTS else ()
    return tensor.shape == shape and tensor.dtype.is_floating_point
