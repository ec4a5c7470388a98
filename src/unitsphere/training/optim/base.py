"""What the optimizers build on: `Eager`, `ByWeight`, and `Combined`, several optimizers as one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from inspect import unwrap
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.training.optim.state import StateSpec, attached, holds, keep_width, state_spec


class Eager(Optimizer):
    """torch's methods without the wrapper that hides them from its compiler.

    For that it imports the compiler, and with it Triton, FSDP and DTensor: half of the time until
    a run's first step. Here nothing compiles a step of an optimizer.
    """

    zero_grad = unwrap(Optimizer.zero_grad)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """torch's; a group that `check_group` refuses is not kept."""
        unwrap(Optimizer.add_param_group)(self, param_group)
        try:
            self.check_group(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise for parameters or numbers of a new group that the optimizer cannot take."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch's, but what is declared wider than its weight is not rounded to its type."""
        super().load_state_dict(state_dict)
        keep_width(self, state_dict, self.declared)

    def declared(self, weight: Tensor) -> StateSpec:
        """What is declared of a weight's state."""
        return state_spec(self, weight)


def check_real(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Raise UserError for complex parameters."""
    if any(parameter.is_complex() for parameter in parameters):
        raise UserError(f"{type(optimizer).__name__} steps real parameters only, not complex ones")


def closure_loss(closure: Callable[[], Any] | None) -> Any:
    """The loss of a closure that is given to an optimizer's `step`; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class ByWeight(Eager, ABC):
    """An optimizer whose step is `move` of each tensor that has a gradient."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        for key in ("lr", "weight_decay"):
            if not defaults[key] >= 0:
                name = key.replace("lr", "learning rate").replace("_", " ")
                raise ValueError(f"Invalid {name}: {defaults[key]}")  # as torch says it
        super().__init__(params, defaults)

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise UserError for complex parameters."""
        check_real(self, group["params"])

    @abstractmethod
    def move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Step one tensor of `group`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of every tensor."""
        loss = closure_loss(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, weight.grad, group)
        return loss

    def group_of(self, parameter: Tensor) -> dict[str, Any]:
        """The group of a parameter."""
        return next(g for g in self.param_groups if any(p is parameter for p in g["params"]))


def hooks(optimizer: Optimizer) -> set[Any]:
    """What is called around its steps: the types of what `attach` attached, and all other calls."""
    tables = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    own = {type(hook) for hook in attached(optimizer)}
    calls = {call for table in tables for call in table.values()}
    return own | {call for call in calls if type(getattr(call, "__self__", None)) not in own}


class Combined(Eager):
    """Several optimizers behind one `step`, one state and one list of groups.

    So hooks, schedules, checkpoints, `state_dict` and deep copies see a single optimizer. Each part
    must be a class that can be made again from its own groups, as torch's optimizers can. What the
    parts have kept of their parameters is taken over.

    Raises UserError for a part with a constraint, an average of weights or another hook of its
    step: they belong here.
    """

    def __init__(self, *parts: Optimizer) -> None:
        flat = [p for part in parts for p in (part.parts if isinstance(part, Combined) else [part])]
        super().__init__([group for part in flat for group in part.param_groups], {})
        self.kinds = [(type(part), len(part.param_groups)) for part in flat]
        for part in flat:
            self.state.update(part.state)
        self._share()
        if set().union(*map(hooks, parts)) - set().union(*map(hooks, self.parts)):
            raise UserError(
                "Combined would lose its parts' constraints, averages and other step hooks: give "
                "them to Combined"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """UserError once it is made: none of the parts would step the group."""
        if hasattr(self, "kinds"):
            raise UserError(
                "Combined does not know which of its optimizers a new group is for: give each its "
                "groups before Combined is made"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of every part."""
        loss = closure_loss(closure)
        for part in self.parts:
            part.step()
        return loss

    def part_of(self, parameter: Tensor) -> Optimizer:
        """The part that steps a parameter."""
        return next(part for part in self.parts if holds(part, parameter))

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """What the part that holds the parameter keeps of it."""
        return state_spec(self.part_of(parameter), parameter)

    def declared(self, weight: Tensor) -> StateSpec:
        """What is declared of a weight's state; torch's own optimizers declare nothing."""
        known = hasattr(self.part_of(weight), "state_spec")
        return super().declared(weight) if known else {}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"kinds": self.kinds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch with what was loaded or copied: the parts use that from now on."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Make the parts over this optimizer's own groups and state."""
        groups = iter(self.param_groups)
        self.parts: list[Optimizer] = [
            kind(list(islice(groups, count)))  # pyright: ignore[reportCallIssue]
            for kind, count in self.kinds
        ]
        for part in self.parts:
            part.state = self.state
