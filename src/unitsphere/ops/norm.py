"""Norms: vectors to unit length (nGPT, anGPT) and RMS normalisation (GPT)."""

from typing import Any

import torch
from torch import Tensor


def unit_norm(x: Tensor, dim: int = -1) -> Tensor:
    """Norm(x) = x / ‖x‖₂ along `dim`, the length taken in fp32 or wider; same shape and dtype.

    A zero vector stays zero and passes its gradient on unchanged, so nothing becomes NaN.
    nGPT §2.2, anGPT §3.
    """
    if not torch.is_grad_enabled():  # without what `apply` costs a token in decoding
        return UnitNorm.forward(x, dim)
    return UnitNorm.apply(x, dim)  # pyright: ignore[reportReturnType]


class UnitNorm(torch.autograd.Function):
    """`unit_norm`, of which x alone is kept for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        """x/‖x‖."""
        return (x / length(x, dim)).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        """Keep x."""
        x, ctx.dim = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """dx, by operations that autograd can differentiate again."""
        (x,) = ctx.saved_tensors
        return unit_norm_backward(g, x, ctx.dim).to(x.dtype), None


def length(x: Tensor, dim: int = -1) -> Tensor:
    """‖x‖₂ along `dim`, kept, in fp32 or wider, and above 0: a zero vector can be divided by it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    found = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=wide)
    return found.clamp(min=torch.finfo(wide).tiny)


def unit_norm_backward(g: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """(g − x̂⟨g, x̂⟩)/‖x‖ for x̂ = x/‖x‖; g itself for a zero vector. In fp32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    found = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=wide)
    found = found.masked_fill(found == 0, 1)
    g, unit = g.to(wide), x / found
    along = torch.linalg.vecdot(g, unit, dim=dim).unsqueeze(dim)
    return torch.addcmul(g, unit, along, value=-1) / found


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain ⊙ x / √(mean x² + eps) along the last axis, in fp32 or wider; `gain` is [d]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * gain).to(x.dtype)
