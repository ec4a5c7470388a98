"""The steps of an optimizer's constrained matrices in the optimizer's place, projection included.

On a GPU one kernel does both. On a CPU torch's fused Adam steps matrix after matrix, and each is
projected while the caches hold it: read from memory again it would take half as long once more.
"""

from collections.abc import Iterable, Mapping
from inspect import unwrap
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from unitsphere.kernels.functions import ADAM_PROJECT
from unitsphere.kernels.registry import mode, refuse, serves
from unitsphere.ops.dtensor import local, spreads_vectors
from unitsphere.ops.project import PROJECTIONS, AdamSettings, Target

PLAIN_FLAGS = ("amsgrad", "maximize", "differentiable")


class Bounded(Protocol):
    """A constraint: vectors along `dim` have the length `radius` (sphere) or at most that."""

    @property
    def kind(self) -> Literal["sphere", "ball"]:
        """sphere or ball"""
        ...

    @property
    def dim(self) -> int:
        """the vectors' axis"""
        ...

    @property
    def radius(self) -> float:
        """their length"""
        ...


@torch.no_grad()
def fused_step(
    optimizer: Optimizer,
    held: Iterable[tuple[Tensor, Bounded]],
    shadows: Mapping[Tensor, Tensor] | None = None,
) -> dict[Tensor, Tensor]:
    """Step and project those matrices of an Adam or AdamW that the kernel, or a CPU, can serve.

    Call it right before `optimizer.step()`, with the gradients that the step will use (of a
    closure they are still to come: do not call it then). It moves torch's own state, so a
    `state_dict` is the same as without it. Returns weight -> gradient for what it stepped: the
    gradient was taken off the weight so that `optimizer.step()` skips the weight; the caller puts
    it back. What is not returned is for `optimizer.step()` and a projection.

    `shadows` maps weights to narrow copies that the kernel brings up to date. Sharded weights are
    stepped where a shard holds whole vectors.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    ready = []
    for weight, bound in held:
        group, shadow = groups.get(id(weight)), (shadows or {}).get(weight)
        if weight.grad is None or group is None or mode() == "off":
            continue
        reason = _unsupported(optimizer, group, weight, bound.dim)
        if reason is not None:
            refuse(ADAM_PROJECT.name, reason, weight.device.type)
            continue
        arguments = _arguments(weight, _state(optimizer, group, weight), group, bound, shadow)
        if serves(ADAM_PROJECT, *arguments):
            ready.append((weight, arguments, ADAM_PROJECT.load()))
        elif weight.device.type == "cpu" and group["fused"] and shadow is None:
            ready.append((weight, arguments, _step_near))
    if not ready:
        return {}
    steps = [arguments[4] for _, arguments, _ in ready]
    torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
    for _, arguments, step in ready:
        step(*arguments)
    return {weight: _put_aside(weight) for weight, _, _ in ready}


def _put_aside(weight: Tensor) -> Tensor:
    gradient, weight.grad = weight.grad, None
    assert gradient is not None
    return gradient


def _step_near(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    adam: AdamSettings,
    target: Target,
    shadow: None,
) -> None:
    """torch's own fused step of one matrix, and its projection while the caches hold it."""
    fused = torch.ops.aten._fused_adamw_ if adam.decoupled else torch.ops.aten._fused_adam_
    beta1, beta2 = adam.betas
    fused(
        [weight], [gradient], [exp_avg], [exp_avg_sq], [], [step],
        lr=adam.lr, beta1=beta1, beta2=beta2, eps=adam.eps, weight_decay=adam.weight_decay,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    PROJECTIONS[target.kind](weight, target.dim, target.radius)


def _unsupported(
    optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor, dim: int
) -> str | None:
    if not isinstance(optimizer, Adam):
        return f"{type(optimizer).__name__} is not Adam"
    # torch wraps the step of each class for its hooks, so the functions inside are compared.
    if unwrap(type(optimizer).step) is not unwrap(Adam.step):
        return f"{type(optimizer).__name__} does not step as Adam does"
    if getattr(optimizer, "grad_scale", None) is not None:
        return "a GradScaler leaves its scaling to the optimizer"
    flags = [flag for flag in PLAIN_FLAGS if group[flag]]
    if flags:
        return f"Adam's {' and '.join(flags)} is not in the kernel"
    return "a vector is spread over several shards" if spreads_vectors(weight, dim) else None


def _state(optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor) -> dict[str, Tensor]:
    """Adam's state of a weight, started as `torch.optim.Adam` starts it."""
    state = optimizer.state[weight]
    if not state:
        on_device = group["fused"] or group["capturable"]
        device = weight.device if on_device else "cpu"
        state["step"] = torch.zeros((), dtype=torch.float32, device=device)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = torch.zeros_like(weight, memory_format=torch.preserve_format)
    return state


def _arguments(
    weight: Tensor,
    state: Mapping[str, Tensor],
    group: Mapping[str, Any],
    bound: Bounded,
    shadow: Tensor | None,
) -> tuple[Any, ...]:
    assert weight.grad is not None
    tensors = [local(t) for t in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])]
    numbers = (group["lr"], group["betas"], group["eps"], group["weight_decay"])
    adam = AdamSettings(*numbers, decoupled=group["decoupled_weight_decay"])
    target = Target(bound.kind, bound.dim, bound.radius)
    narrow = None if shadow is None else local(shadow)
    return (*tensors, state["step"], adam, target, narrow)
