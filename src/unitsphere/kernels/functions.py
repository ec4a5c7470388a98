"""The kernels' functions: each runs its kernel where that can serve, else the plain function.

Each has the name and the signature of a function in `ops`, and a refusal: the reason why its kernel
cannot serve some arguments, or None.

`fused_step` makes the steps of an optimizer's constrained matrices in the optimizer's place,
projection included. On a GPU one kernel does both. On a CPU torch's fused Adam steps matrix after
matrix, and each is projected while the caches hold it: read from memory again it would take half
as long once more.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from unitsphere.kernels.registry import (
    Kernel,
    call,
    mode,
    no_backend,
    refuse,
    register,
    serves,
    unfit,
)
from unitsphere.ops import project, residual, rope
from unitsphere.ops.dtensor import local, spreads_vectors
from unitsphere.ops.loss import Path
from unitsphere.ops.project import PROJECTIONS, AdamSettings, Target

LONGEST_ROW = 8192  # a program of lerp_norm holds whole rows in registers
LARGEST_HEAD = 512  # a program of rope_norm holds whole heads in registers


def lerp_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step from h towards Norm(x) by α, back onto the sphere (nGPT eq. 10), in h's dtype."""
    return call(LERP_NORM, h, x, alpha)


def _no_lerp_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> str | None:
    if h.shape != x.shape:
        return "h and x differ in shape"
    d = h.shape[-1]
    if d > LONGEST_ROW:
        return f"vectors are longer than {LONGEST_ROW}"
    if h.numel() == 0:
        return "there are no elements"
    if not isinstance(alpha, Tensor):
        return unfit(h, x)
    if alpha.shape not in ((), (d,)):
        return "α is neither a scalar nor a vector of h's width"
    return unfit(h, x, alpha)


def _load_lerp_norm() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.residual import lerp_norm

    return lerp_norm


LERP_NORM = register(Kernel(residual.lerp_norm, _no_lerp_norm, _load_lerp_norm))


def rope_norm(
    x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None = None
) -> Tensor:
    """Norm(RoPE(x)) · scale for the heads x [batch, H, time, d_k], in x's dtype.

    The scale is nGPT's s_qk [H, 1, d_k] (eq. 15, 16), the g [H, 1, 1] of GPT+ and anGPT, a scalar
    tensor, a float, or none. The table is `ops.rope.rope_table`'s, of one for all batch rows,
    [time, d_rot/2], or one for each, [batch, 1, time, d_rot/2].
    """
    return call(ROPE_NORM, x, table, scale)


def _no_rope_norm(
    x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None
) -> str | None:
    if x.dim() != 4 or x.numel() == 0:
        return "x is not [batch, H, time, d_k]"
    batch, heads, time, d_k = x.shape
    if d_k > LARGEST_HEAD:
        return f"heads are larger than {LARGEST_HEAD}"
    cos, sin = table
    half = cos.shape[-1]
    if half == 0:
        return "RoPE rotates nothing"
    if cos.shape != sin.shape or cos.shape not in ((time, half), (batch, 1, time, half)):
        return "RoPE's table is neither one for all batch rows nor one for each"
    if cos.requires_grad or sin.requires_grad:
        return "RoPE's table requires a gradient"
    if not isinstance(scale, Tensor):
        return unfit(x, cos, sin)
    if scale.shape not in ((), (heads, 1, 1), (heads, 1, d_k)):
        return "the scale is neither a scalar nor one for each head or element of a head"
    return unfit(x, cos, sin, scale)


def _load_rope_norm() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.rope import rope_norm

    return rope_norm


ROPE_NORM = register(Kernel(rope.rope_norm, _no_rope_norm, _load_rope_norm))


def adam_project_(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    adam: AdamSettings,
    target: Target,
    shadow: Tensor | None = None,
) -> Tensor:
    """One step of Adam on a weight [out, in], then its projection onto `target`; both in place.

    The arguments are those of `ops.project.adam_project_`. Returns the weight.
    """
    return call(ADAM_PROJECT, weight, gradient, exp_avg, exp_avg_sq, step, adam, target, shadow)


def _no_adam_project(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    adam: AdamSettings,
    target: Target,
    shadow: Tensor | None = None,
) -> str | None:
    if weight.dim() != 2 or weight.numel() == 0 or not isinstance(target.dim, int):
        return "it is not a matrix with vectors along one axis"
    if target.kind not in PROJECTIONS:
        return f"there is no kernel for the constraint '{target.kind}'"
    held = [weight, exp_avg, exp_avg_sq, *([] if shadow is None else [shadow])]
    if any(tensor.shape != weight.shape or not tensor.is_contiguous() for tensor in held):
        return "weight, moments and copy are not contiguous and of one shape"
    if gradient.shape != weight.shape or gradient.is_sparse:
        return "the gradient is not as the weight is"
    if step.device != weight.device or step.dtype != torch.float32:
        return "the step is not counted on the weight's device in fp32: build Adam with fused=True"
    if any(isinstance(number, Tensor) for number in (adam.lr, *adam.betas, target.radius)):
        return "the rate, the betas or the radius is a tensor"
    return unfit(*held, gradient)


def _load_adam_project() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.adam import adam_project_

    return adam_project_


ADAM_PROJECT = register(Kernel(project.adam_project_, _no_adam_project, _load_adam_project))


def loss_path(device: torch.device, compiled: bool = False) -> Path:
    """The path of `ops.loss.linear_cross_entropy` that is the fastest on a device.

    compiled: whether the model is, so that a CPU has a compiler too.
    """
    can = compiled or no_backend(device.type, device.index, "auto") is None
    return "fused" if can and mode() != "off" else "auto"


PLAIN_FLAGS = ("amsgrad", "maximize", "differentiable")


@torch.no_grad()
def fused_step(
    optimizer: Optimizer,
    held: Iterable[tuple[Tensor, Any]],
    shadows: Mapping[Tensor, Tensor] | None = None,
) -> dict[Tensor, Tensor]:
    """Step and project those matrices of an Adam or AdamW that the kernel, or a CPU, can serve.

    held: weights with their constraint, anything with a `kind`, `dim` and `radius` as `Target` has.
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
    gradients: dict[Tensor, Tensor] = {}
    for weight, arguments, step in ready:
        step(*arguments)
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        gradients[weight] = gradient
    return gradients


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
    # After `unscale_` only the second is there: the optimizer skips a step of infinite gradients.
    if any(getattr(optimizer, key, None) is not None for key in ("grad_scale", "found_inf")):
        return "a GradScaler leaves its scaling, or what it found, to the optimizer"
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
    bound: Any,
    shadow: Tensor | None,
) -> tuple[Any, ...]:
    assert weight.grad is not None
    tensors = [local(t) for t in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])]
    numbers = (group["lr"], group["betas"], group["eps"], group["weight_decay"])
    adam = AdamSettings(*numbers, decoupled=group["decoupled_weight_decay"])
    target = Target(bound.kind, bound.dim, bound.radius)
    narrow = None if shadow is None else local(shadow)
    return (*tensors, state["step"], adam, target, narrow)
