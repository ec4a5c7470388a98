"""What belongs to an optimizer's step: done before and after it, and copied with the optimizer.

torch keeps step hooks through `load_state_dict`, but drops them from copies and pickles
(`Optimizer.__getstate__`). A copy with `copy.deepcopy` keeps these; after unpickling, attach anew.
"""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepHook:
    """Work on the tensors that an optimizer holds, around each of its steps."""

    def remembers(self) -> dict[Tensor, frozenset[str]]:
        """Weight -> the names under which the optimizer's state of it has scalars of this hook."""
        return {}

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Called before a step; `ready`: with its gradients, which those of a closure are not."""

    def after(self, optimizer: Optimizer) -> None:
        """Called when the weights have moved."""

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _, *given = args  # torch hands on those of `Optimizer.step`, the optimizer first
        closure = given[0] if given else kwargs.get("closure")
        self.before(optimizer, ready=closure is None)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.after(optimizer)


def attach(optimizer: Optimizer, hook: StepHook) -> list[RemovableHandle]:
    """Call `hook` around every step of `optimizer`, and of its deep copies; handles that undo it.

    Deep copies of optimizer and model must be made together, `copy.deepcopy((model, optimizer))`,
    as without any hook: alone, the optimizer is copied with parameters of its own.
    """
    optimizer.__deepcopy__ = lambda memo: _deep_copy(optimizer, memo)  # pyright: ignore[reportAttributeAccessIssue]
    return [
        optimizer.register_step_pre_hook(hook._before),
        optimizer.register_step_post_hook(hook._after),
    ]


def _deep_copy(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """torch's deep copy of an optimizer, and the hooks attached to it over the copied tensors."""
    twin = type(optimizer).__new__(type(optimizer))
    memo[id(optimizer)] = twin
    twin.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    for hook in attached(optimizer):
        attach(twin, copy.deepcopy(hook, memo))
    return twin


def attached(optimizer: Optimizer) -> list[StepHook]:
    """The hooks that `attach` has attached."""
    calls: list[Callable[..., Any]] = list(optimizer._optimizer_step_post_hooks.values())
    owners = [getattr(call, "__self__", None) for call in calls]
    return [owner for owner in owners if isinstance(owner, StepHook)]
