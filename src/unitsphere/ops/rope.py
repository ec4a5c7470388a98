"""Positions: rotary embedding (RoPE), and sinusoids that are added to the embeddings.

RoPE: dimension i of the rotated part pairs with i + d_rot/2.

RoPE(x)_i            = x_i cos θ_i − x_{i+d_rot/2} sin θ_i
RoPE(x)_{i+d_rot/2}  = x_{i+d_rot/2} cos θ_i + x_i sin θ_i,   θ_i = position · base^(−2i/d_rot)

A rotation: lengths do not change, and scores depend only on the distance of two positions.
Tables are computed from the positions in each forward pass, so there is no buffer to lose.
"""

import math

import torch
from torch import Tensor

from unitsphere.ops.norm import cast, unit_norm


def rope_table(
    positions: Tensor, d_rot: int, base: float, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """(cos θ, sin θ), each positions' shape + [d_rot/2], in `dtype` (fp32 or wider)."""
    frequencies = rope_frequencies(d_rot, base, dtype, positions.device)
    theta = positions.to(dtype)[..., None] * frequencies
    return theta.cos(), theta.sin()


def rope_frequencies(
    d_rot: int,
    base: float,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """base^(−2i/d_rot), [d_rot/2]."""
    return base ** -(torch.arange(0, d_rot, 2, device=device, dtype=dtype) / d_rot)


def rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first d_rot dimensions of x [..., time, d_k]; the rest pass unchanged."""
    cos, sin = table
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return cast(torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1), x.dtype)


def rope_norm(
    x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None = None
) -> Tensor:
    """Norm(RoPE(x)) · scale for the heads x [batch, H, time, d_k], in x's dtype.

    The scale is nGPT's s_qk [H, 1, d_k] (eq. 15, 16), the g [H, 1, 1] of GPT+ and anGPT, a scalar
    tensor, a float, or none.
    """
    unit = unit_norm(rope(x, table))
    return unit if scale is None else cast(unit * scale, x.dtype)


def sinusoid(positions: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """[sin(p·ω) ‖ cos(p·ω)] with ω_i = 10000^(−i/(d/2 − 1)): positions' shape + [d].

    The two halves are side by side, not interleaved, as NormFormer's code base lays them out;
    an odd d is filled with a zero.
    """
    half = d // 2
    wide = torch.promote_types(dtype, torch.float32)  # bf16 has no 257
    steps = torch.arange(half, device=positions.device, dtype=wide)
    omega = torch.exp(steps * (-math.log(10000.0) / max(half - 1, 1)))
    angles = positions.to(wide)[..., None] * omega
    table = torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype)
    return torch.nn.functional.pad(table, (0, d - 2 * half))
