"""RoPE, norm and scale of queries and keys as one kernel (see `ops.rope`)."""

from collections.abc import Callable

from torch import Tensor

from unitsphere.kernels.registry import Kernel, call, register, unfit
from unitsphere.ops import rope as plain

LARGEST = 512  # a program holds whole heads in registers


def rope_norm(
    x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None = None
) -> Tensor:
    """Norm(RoPE(x)) · scale for the heads x [batch, H, time, d_k], in x's dtype.

    The scale is nGPT's s_qk [H, 1, d_k] (eq. 15, 16), the g [H, 1, 1] of GPT+ and anGPT, a scalar
    tensor, a float, or none. The table is `ops.rope.rope_table`'s, of one for all batch rows,
    [time, d_rot/2], or one for each, [batch, 1, time, d_rot/2].
    """
    return call(ROPE_NORM, x, table, scale)


def _refusal(x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None) -> str | None:
    if x.dim() != 4 or x.numel() == 0:
        return "x is not [batch, H, time, d_k]"
    batch, heads, time, d_k = x.shape
    if d_k > LARGEST:
        return f"heads are larger than {LARGEST}"
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


def _load() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.rope import rope_norm

    return rope_norm


ROPE_NORM = register(Kernel(plain.rope_norm, _refusal, _load))
