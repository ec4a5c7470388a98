"""Norms: vectors to unit length (nGPT, anGPT) and RMS normalisation (GPT)."""

from typing import Any

import torch
from torch import Tensor


def unit_norm(x: Tensor, dim: int = -1) -> Tensor:
    """Norm(x) = x / ‖x‖₂ along `dim`, the length taken in fp32 or wider; same shape and dtype.

    A zero vector stays zero and passes its gradient on unchanged, so nothing becomes NaN.
    nGPT §2.2, anGPT §3.
    """
    if not torch.is_grad_enabled():  # `apply` costs time for each token in decoding
        return UnitNorm.forward(x, dim)
    return UnitNorm.apply(x, dim)  # pyright: ignore[reportReturnType]


class UnitNorm(torch.autograd.Function):
    """`unit_norm`, which keeps only x for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        """x/‖x‖."""
        return cast(x / length(x, dim), x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        """Keep x."""
        x, ctx.dim = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """r(g − x̂⟨g, x̂⟩), r = 1/‖x‖, by operations that autograd can differentiate again."""
        (x,) = ctx.saved_tensors
        r = reciprocal_length(x, ctx.dim)
        g, unit = g.to(r.dtype), x * r
        dx = r * torch.addcmul(g, unit, inner(g, unit, ctx.dim), value=-1)
        return dx.to(x.dtype), None


def length(x: Tensor, dim: int = -1) -> Tensor:
    """‖x‖₂ along `dim`, kept, in fp32 or wider, and above 0: a zero vector can be divided by it.

    Not for autograd, which needs the length before it is bounded in place.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    found = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=wide)
    return found.clamp_min_(torch.finfo(wide).tiny)


def reciprocal_length(x: Tensor, dim: int = -1) -> Tensor:
    """1/‖x‖₂ along `dim`, kept, in fp32 or wider; 1 for a zero vector, whose gradient passes."""
    wide = torch.promote_types(x.dtype, torch.float32)
    found = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=wide)
    return found.masked_fill(found == 0, 1).reciprocal()


def inner(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """⟨x, y⟩ along `dim`, kept."""
    return torch.linalg.vecdot(x, y, dim=dim).unsqueeze(dim)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain ⊙ x / √(mean x² + eps) along the last axis, in fp32 or wider; `gain` is [d]."""
    wide = cast(x, torch.promote_types(x.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return cast(scaled * gain, x.dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype; `x.to` costs a call of torch where x has it already, which decoding feels."""
    return x if x.dtype == dtype else x.to(dtype)
