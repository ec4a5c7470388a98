"""The kernels' functions: each runs its kernel where that can serve, else the plain function.

Each has the name and the signature of a function in `ops`, and a refusal: the reason why its kernel
cannot serve some arguments, or None.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unitsphere.kernels.registry import Kernel, call, mode, no_backend, register, unfit
from unitsphere.ops import project, residual, rope
from unitsphere.ops.loss import Path
from unitsphere.ops.project import AdamSettings, Target

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
    if target.kind not in project.PROJECTIONS:
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


def loss_path(device: torch.device) -> Path:
    """The path of `ops.loss.linear_cross_entropy` that is the fastest on a device."""
    can = mode() != "off" and no_backend(device.type, device.index, "auto") is None
    return "fused" if can else "auto"
