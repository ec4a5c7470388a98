"""What an optimizer keeps of each parameter, declared; and what belongs to its step.

An optimizer of the registry has a method `state_spec(parameter)`: the name of every tensor that it
keeps of that parameter, and its `Slot`. Checkpoints are checked by it, the forecast of memory adds
it up, and probes find moments by it. A `StepHook` declares what it adds to that state.

torch keeps step hooks through `load_state_dict`, but drops them from copies and pickles
(`Optimizer.__getstate__`). A copy with `copy.deepcopy` keeps these; after unpickling, attach again.
Those that an optimizer's class attaches itself (`AdamH`, `MuonH`) come back with it.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local


@dataclass(frozen=True)
class Slot:
    """One tensor of an optimizer's state of a parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    like_parameter: bool = False
    """spread over processes as the parameter is; otherwise every process holds all of it"""
    moment: Literal[1, 2] | None = None
    """Adam's first moment (an average of gradients) or its second (of their squares)"""

    def bytes(self, parameter: Tensor) -> int:
        """Bytes of it that this process holds."""
        shape = local(parameter).shape if self.like_parameter else torch.Size(self.shape)
        return shape.numel() * self.dtype.itemsize

    def empty(self, parameter: Tensor) -> Tensor:
        """An empty tensor for it: on the parameter's device and mesh, or all of it on the CPU."""
        if self.like_parameter:
            return torch.empty_like(parameter.detach(), dtype=self.dtype)
        return torch.empty(self.shape, dtype=self.dtype)


StateSpec = dict[str, Slot]
"""Name of a tensor in the state of a parameter -> what it is."""
COUNT = Slot(())
"""A number that counts steps, as torch's optimizers keep it."""


def like(parameter: Tensor, moment: Literal[1, 2] | None = None) -> Slot:
    """A slot shaped and stored as the parameter is."""
    return Slot(tuple(parameter.shape), parameter.dtype, like_parameter=True, moment=moment)


class StepHook:
    """Work on the tensors that an optimizer holds, around each of its steps.

    `of_gradients`: `before` changes gradients, so with a closure it waits until that has made them.
    """

    of_gradients = False

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """What this hook adds to the optimizer's state of a parameter."""
        return {}

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Called before a step; `ready`: with its gradients, which those of a closure are not."""

    def after(self, optimizer: Optimizer) -> None:
        """Called when the weights have moved."""

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        _, *given = args  # torch hands on those of `Optimizer.step`, the optimizer first
        closure = given[0] if given else kwargs.get("closure")
        if closure is None or not self.of_gradients:
            self.before(optimizer, ready=closure is None)
            return None

        def then_before() -> Any:
            loss = closure()
            self.before(optimizer, ready=True)
            return loss

        kept = {key: value for key, value in kwargs.items() if key != "closure"}
        return (optimizer, then_before, *given[1:]), kept  # what the step is called with instead

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.after(optimizer)

    def _loading(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._given = state_dict

    def _loaded(self, optimizer: Optimizer) -> None:
        keep_width(optimizer, self._given, self.state_spec)
        del self._given


def keep_width(
    optimizer: Optimizer, state_dict: dict[str, Any], spec: Callable[[Tensor], StateSpec]
) -> None:
    """Give `optimizer`, which has loaded `state_dict`, the types back that `spec` declares.

    torch rounds all that it loads to the weight's type. With weights in bf16, counts, radii,
    averages and covariances are kept in fp32. A hook of the user's may have loaded something else
    than `state_dict`: only where rounding gives what is held it is not rounded.
    """
    saved = [at for group in state_dict["param_groups"] for at in group["params"]]
    own = [weight for group in optimizer.param_groups for weight in group["params"]]
    for at, weight in zip(saved, own, strict=False):
        state = optimizer.state.get(weight, {})
        for key, value in state_dict["state"].get(at, {}).items():
            held = state.get(key)
            if not isinstance(value, Tensor) or held is None or held.dtype == value.dtype:
                continue
            slot, value = spec(weight).get(key), value.detach().to(held.device)
            if slot is not None and slot.dtype != held.dtype and is_rounded(value, held):
                state[key] = value.clone().to(slot.dtype)


def is_rounded(value: Tensor, held: Tensor) -> bool:
    """Whether `held` is `value` in its own type."""
    return value.shape == held.shape and bool((value.to(held.dtype) == held).all())


def attach(optimizer: Optimizer, hook: StepHook) -> list[RemovableHandle]:
    """Call `hook` around every step of `optimizer`, and of its deep copies; handles that undo it.

    Deep copies of optimizer and model must be made together, `copy.deepcopy((model, optimizer))`,
    as without any hook: an optimizer copied by itself gets new parameters.
    """
    optimizer.__deepcopy__ = lambda memo: _deep_copy(optimizer, memo)  # pyright: ignore[reportAttributeAccessIssue]
    return [
        optimizer.register_step_pre_hook(hook._before),
        optimizer.register_step_post_hook(hook._after),
        optimizer.register_load_state_dict_pre_hook(hook._loading),
        optimizer.register_load_state_dict_post_hook(hook._loaded),
    ]


def _deep_copy(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """torch's deep copy of an optimizer, and the hooks attached to it over the copied tensors."""
    twin = type(optimizer).__new__(type(optimizer))
    memo[id(optimizer)] = twin
    twin.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    twin._optimizer_step_pre_hooks.clear()  # those that the class attaches are copied too
    twin._optimizer_step_post_hooks.clear()
    for hook in attached(optimizer):
        attach(twin, copy.deepcopy(hook, memo))
    return twin


def attached(optimizer: Optimizer) -> list[StepHook]:
    """The hooks that `attach` has attached."""
    calls: list[Callable[..., Any]] = list(optimizer._optimizer_step_post_hooks.values())
    owners = [getattr(call, "__self__", None) for call in calls]
    return [owner for owner in owners if isinstance(owner, StepHook)]


def rates(optimizer: Optimizer) -> dict[int, Any]:
    """The id of each tensor that the optimizer holds -> its rate; None where there is none."""
    return {id(p): g.get("lr") for g in optimizer.param_groups for p in g["params"]}


def skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler has had a fused optimizer leave out the step that it was called for."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def holds(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Whether the optimizer steps this very tensor."""
    return any(p is parameter for group in optimizer.param_groups for p in group["params"])


def state_spec(optimizer: Optimizer, parameter: Tensor) -> StateSpec:
    """All that an optimizer and its hooks keep of a parameter once it has been stepped."""
    if not holds(optimizer, parameter):
        return {}
    declared = getattr(optimizer, "state_spec", None)
    if declared is None:
        raise TypeError(
            f"{type(optimizer).__name__} does not declare its state: give it a method state_spec"
        )
    found: StateSpec = dict(declared(parameter))
    for hook in attached(optimizer):
        own = hook.state_spec(parameter)
        if taken := found.keys() & own.keys():
            raise RuntimeError(f"{type(hook).__name__} keeps {min(taken)}, which is kept already")
        found |= own
    return found


def first_moment_keys(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Parameter name -> the name of Adam's first moment in its state, of all that has one."""
    return {
        name: key
        for name, parameter in model.named_parameters()
        for key, slot in state_spec(optimizer, parameter).items()
        if slot.moment == 1
    }


def first_moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameter name -> Adam's first moment, of all that has one and has been stepped."""
    kept = {name: optimizer.state.get(p, {}) for name, p in model.named_parameters()}
    keys = first_moment_keys(model, optimizer)
    return {name: kept[name][key] for name, key in keys.items() if key in kept[name]}


def check_state(
    folder: Path,
    stored: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    optimizer: Optimizer,
) -> dict[str, Slot]:
    """Stored name -> its slot; a UserError unless a checkpoint fits what the optimizer declares.

    `stored` is `optim.<parameter>.<state>` -> a tensor of that shape and dtype. Of each of
    `parameters` it must hold all that the optimizer keeps, or nothing. A checkpoint may come from
    somebody else: torch would take any names, and fail in the next step.
    """
    found: dict[str, Slot] = {}
    specs: dict[str, StateSpec] = {}
    for name, tensor in stored.items():
        parameter, _, key = name.removeprefix("optim.").rpartition(".")
        if parameter in parameters and parameter not in specs:
            specs[parameter] = state_spec(optimizer, parameters[parameter])
        slot = specs.get(parameter, {}).get(key)
        if slot is None or (tuple(tensor.shape), tensor.dtype) != (tuple(slot.shape), slot.dtype):
            raise UserError(f"checkpoint {folder} does not fit the optimizer at {name}")
        found[name] = slot
    for parameter, spec in specs.items():
        missing = [key for key in spec if f"optim.{parameter}.{key}" not in found]
        if missing:
            raise UserError(
                f"checkpoint {folder} does not fit the optimizer at "
                f"optim.{parameter}.{min(missing)}: only one of the two has it"
            )
    return found
