"""lerp_norm, forward and backward in one pass each over h, x and the upstream gradient g.

With r_x = 1/‖x‖, x̂ = r_x x, s = h + α⊙(x̂ − h), r_s = 1/‖s‖, y = r_s s:
ds = r_s(g − y⟨g,y⟩);  dα = Σ_rows ds⊙(x̂ − h);  dh = (1 − α)⊙ds;
dx = r_x(α⊙ds − x̂⟨α⊙ds, x̂⟩), where ⟨α⊙ds, x̂⟩ = r_s(⟨g, α⊙x̂⟩ − ⟨g,y⟩⟨y, α⊙x̂⟩),
so that every sum over a row can be taken at once. r_x and r_s are kept from the forward pass, one
number per row each. dα is summed in each program over its rows, then over programs: no atomics.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from unitsphere.kernels.gpu.library import blocks, covering, kernel_op, reciprocal, warps

TILE = 2048  # elements that a program holds of each tensor, or one row where that is longer
PROGRAMS = 1024  # of the backward pass at least, where the rows suffice: a partial dα each


@triton.jit
def _forward(
    h_ptr, x_ptr, alpha_ptr, y_ptr, r_x_ptr, r_s_ptr,
    rows, d: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    at = row[:, None] * d + column[None, :]
    h = tl.load(h_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    alpha = tl.load(alpha_ptr + column, mask=column < d, other=0.0).to(tl.float32)[None, :]
    r_x = reciprocal(tl.sum(x * x, axis=1))
    s = h + alpha * (x * r_x[:, None] - h)
    r_s = reciprocal(tl.sum(s * s, axis=1))
    tl.store(y_ptr + at, s * r_s[:, None], mask=inside)
    tl.store(r_x_ptr + row, r_x, mask=row < rows)
    tl.store(r_s_ptr + row, r_s, mask=row < rows)


@triton.jit
def _backward(
    g_ptr, h_ptr, x_ptr, alpha_ptr, r_x_ptr, r_s_ptr, dh_ptr, dx_ptr, partial_ptr,
    rows, d: tl.constexpr, STEPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    alpha = tl.load(alpha_ptr + column, mask=column < d, other=0.0).to(tl.float32)[None, :]
    d_alpha = tl.zeros([BLOCK_R, BLOCK_D], dtype=tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * BLOCK_R + tl.arange(0, BLOCK_R)
        inside = (row < rows)[:, None] & (column < d)[None, :]
        at = row[:, None] * d + column[None, :]
        g = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
        h = tl.load(h_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        r_x = tl.load(r_x_ptr + row, mask=row < rows, other=0.0)[:, None]
        r_s = tl.load(r_s_ptr + row, mask=row < rows, other=0.0)[:, None]
        x_hat = x * r_x
        apart = x_hat - h
        y = (h + alpha * apart) * r_s
        towards = alpha * x_hat
        g_y = tl.sum(g * y, axis=1)[:, None]
        along = r_s * (
            tl.sum(g * towards, axis=1)[:, None] - g_y * tl.sum(y * towards, axis=1)[:, None]
        )
        ds = r_s * (g - y * g_y)
        d_alpha += ds * apart
        tl.store(dh_ptr + at, ds - alpha * ds, mask=inside)
        tl.store(dx_ptr + at, r_x * (alpha * ds - x_hat * along), mask=inside)
    tl.store(partial_ptr + program * d + column, tl.sum(d_alpha, axis=0), mask=column < d)


def tiles(rows: int, d: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and how many tiles a program of the backward pass takes.

    Only from the shape, so that results do not depend on the GPU.
    """
    block_d = covering(d)
    block_r = max(TILE // block_d, 1)
    steps = 4
    while steps < 64 and rows >= 2 * steps * block_r * PROGRAMS:
        steps *= 2
    return block_r, block_d, steps


@kernel_op("lerp_norm")
def _lerp_norm(h: Tensor, x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h, x = h.contiguous(), x.contiguous()
    d = h.shape[-1]
    rows = h.numel() // d
    y = torch.empty_like(h)
    r_x = h.new_empty(rows, dtype=torch.float32)
    r_s = torch.empty_like(r_x)
    block_r, block_d, _ = tiles(rows, d)
    wrap_triton(_forward)[(blocks(rows, block_r),)](
        h, x, alpha.contiguous(), y, r_x, r_s, rows, d, block_r, block_d,
        num_warps=warps(block_r * block_d),
    )  # fmt: skip
    return y, r_x, r_s


@_lerp_norm.register_fake
def _(h: Tensor, x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r_x = h.new_empty(h.numel() // h.shape[-1], dtype=torch.float32)
    return h.new_empty(h.shape), r_x, torch.empty_like(r_x)


@kernel_op("lerp_norm_backward")
def _lerp_norm_backward(
    g: Tensor, h: Tensor, x: Tensor, alpha: Tensor, r_x: Tensor, r_s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    g, h, x = g.contiguous(), h.contiguous(), x.contiguous()
    d = h.shape[-1]
    rows = h.numel() // d
    dh, dx = torch.empty_like(h), torch.empty_like(x)
    block_r, block_d, steps = tiles(rows, d)
    programs = blocks(rows, block_r * steps)
    partial = h.new_empty(programs, d, dtype=torch.float32)
    wrap_triton(_backward)[(programs,)](
        g, h, x, alpha.contiguous(), r_x, r_s, dh, dx, partial, rows, d, steps, block_r, block_d,
        num_warps=warps(block_r * block_d),
    )  # fmt: skip
    return dh, dx, partial.sum(0).to(alpha.dtype)


@_lerp_norm_backward.register_fake
def _(
    g: Tensor, h: Tensor, x: Tensor, alpha: Tensor, r_x: Tensor, r_s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return h.new_empty(h.shape), x.new_empty(x.shape), alpha.new_empty(alpha.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, r_x, r_s = output
    ctx.mark_non_differentiable(r_x, r_s)
    ctx.save_for_backward(*inputs, r_x, r_s)


def _gradients(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _lerp_norm_backward(g, *ctx.saved_tensors)


_lerp_norm.register_autograd(_gradients, setup_context=_keep)


def lerp_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """`ops.residual.lerp_norm`; a scalar α becomes a vector, its gradient the sum."""
    d = h.shape[-1]
    if not isinstance(alpha, Tensor):
        alpha = h.new_full((), alpha, dtype=torch.float32)
    return _lerp_norm(h, x, alpha.expand(d))[0]
