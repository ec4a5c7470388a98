"""Absolute positions: sinusoids added to the embeddings."""

import math

import torch
from torch import Tensor


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
