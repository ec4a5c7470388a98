"""rope_norm, forward and backward in one pass each over x and the upstream gradient g.

With z = RoPE(x), r = 1/‖z‖, u = r z, y = s⊙u:
ds = Σ g⊙u;  du = s⊙g;  dz = r(du − u⟨u, du⟩);  dx = RoPEᵀ(dz), the rotation back.
r is kept from the forward pass, one number per head. A head [d_k] lies in three pieces: a and b,
which turn together, and the rest c, so that no element changes its thread.

A program takes a stretch of time for a few heads and loads the table once for them. In the backward
pass it takes a few stretches for one head, so that ds is summed over time only once. Tensors are
read where they lie, be it [batch, H, time, d_k] or a view of [batch, time, H·d_k].
"""

# pyright: reportGeneralTypeIssues=false
# Inside a kernel the calls of other kernels are Triton's, which Python's types do not describe.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from unitsphere.kernels.gpu.library import blocks, covering, kernel_op, reciprocal, warps

TILE, TILE_BACK = 2048, 1024  # elements of x that a program holds; in the backward pass
HEADS = 4  # heads that a program takes at most, one after the other
STEPS = 8  # stretches of time that a program of the backward pass takes, one after the other


@triton.jit
def _load3(ptr, row, inside, half: tl.constexpr, rest: tl.constexpr,
           HALF: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    """The pieces a, b [T, HALF] and c [T, REST] of heads that begin at `row`, in fp32."""
    i, j = tl.arange(0, HALF)[None, :], tl.arange(0, REST)[None, :]
    pair, tail = inside & (i < half), inside & (j < rest)
    a = tl.load(ptr + row + i, mask=pair, other=0.0).to(tl.float32)
    b = tl.load(ptr + row + half + i, mask=pair, other=0.0).to(tl.float32)
    c = tl.load(ptr + row + 2 * half + j, mask=tail, other=0.0).to(tl.float32)
    return a, b, c


@triton.jit
def _store3(ptr, row, inside, a, b, c, half: tl.constexpr, rest: tl.constexpr,
            HALF: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    i, j = tl.arange(0, HALF)[None, :], tl.arange(0, REST)[None, :]
    pair, tail = inside & (i < half), inside & (j < rest)
    tl.store(ptr + row + i, a, mask=pair)
    tl.store(ptr + row + half + i, b, mask=pair)
    tl.store(ptr + row + 2 * half + j, c, mask=tail)


@triton.jit
def _table(cos_ptr, sin_ptr, batch, table_b, t, inside, half: tl.constexpr, HALF: tl.constexpr):
    i = tl.arange(0, HALF)[None, :]
    at = batch * table_b + t * half + i
    cos = tl.load(cos_ptr + at, mask=inside & (i < half), other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + at, mask=inside & (i < half), other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def _forward(
    x_ptr, cos_ptr, sin_ptr, scale_ptr, y_ptr, r_ptr,
    x_b, x_h, x_t, y_b, y_h, y_t, table_b, time,
    heads: tl.constexpr, half: tl.constexpr, rest: tl.constexpr, SCALED: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_T: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)[:, None]
    cos, sin = _table(cos_ptr, sin_ptr, batch, table_b, t, t < time, half, HALF)
    for member in range(GROUP):
        head = tl.program_id(1) * GROUP + member
        inside = (t < time) & (head < heads)
        row = batch * x_b + head * x_h + t * x_t
        a, b, c = _load3(x_ptr, row, inside, half, rest, HALF, REST)
        z_a, z_b = a * cos - b * sin, b * cos + a * sin
        square = tl.sum(z_a * z_a + z_b * z_b, axis=1) + tl.sum(c * c, axis=1)
        r = reciprocal(square)[:, None]
        u_a, u_b, u_c = r * z_a, r * z_b, r * c
        if SCALED:
            at = head * (2 * half + rest)
            s_a, s_b, s_c = _load3(scale_ptr, at, head < heads, half, rest, HALF, REST)
            u_a, u_b, u_c = s_a * u_a, s_b * u_b, s_c * u_c
        row = batch * y_b + head * y_h + t * y_t
        _store3(y_ptr, row, inside, u_a, u_b, u_c, half, rest, HALF, REST)
        tl.store(r_ptr + (batch * heads + head) * time + t, r, mask=inside)


@triton.jit
def _backward(
    g_ptr, x_ptr, cos_ptr, sin_ptr, scale_ptr, r_ptr, dx_ptr, partial_ptr,
    g_b, g_h, g_t, x_b, x_h, x_t, dx_b, dx_h, dx_t, table_b, time,
    heads: tl.constexpr, half: tl.constexpr, rest: tl.constexpr, SCALED: tl.constexpr,
    STEPS: tl.constexpr, BLOCK_T: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    ds_a = tl.zeros([BLOCK_T, HALF], dtype=tl.float32)
    ds_b = tl.zeros([BLOCK_T, HALF], dtype=tl.float32)
    ds_c = tl.zeros([BLOCK_T, REST], dtype=tl.float32)
    if SCALED:
        s_a, s_b, s_c = _load3(scale_ptr, head * (2 * half + rest), True, half, rest, HALF, REST)
    for step in range(STEPS):
        first = (tl.program_id(1) * STEPS + step) * BLOCK_T
        t = (first + tl.arange(0, BLOCK_T)).to(tl.int64)[:, None]
        inside = t < time
        cos, sin = _table(cos_ptr, sin_ptr, batch, table_b, t, inside, half, HALF)
        row = batch * x_b + head * x_h + t * x_t
        a, b, c = _load3(x_ptr, row, inside, half, rest, HALF, REST)
        row = batch * g_b + head * g_h + t * g_t
        g_a, g_b_, g_c = _load3(g_ptr, row, inside, half, rest, HALF, REST)
        r = tl.load(r_ptr + (batch * heads + head) * time + t, mask=inside, other=0.0)
        u_a, u_b, u_c = r * (a * cos - b * sin), r * (b * cos + a * sin), r * c
        if SCALED:
            ds_a += g_a * u_a
            ds_b += g_b_ * u_b
            ds_c += g_c * u_c
            g_a, g_b_, g_c = s_a * g_a, s_b * g_b_, s_c * g_c
        along = tl.sum(u_a * g_a + u_b * g_b_, axis=1) + tl.sum(u_c * g_c, axis=1)
        along = along[:, None]
        dz_a, dz_b = r * (g_a - u_a * along), r * (g_b_ - u_b * along)
        dc = r * (g_c - u_c * along)
        row = batch * dx_b + head * dx_h + t * dx_t
        da, db = dz_a * cos + dz_b * sin, dz_b * cos - dz_a * sin
        _store3(dx_ptr, row, inside, da, db, dc, half, rest, HALF, REST)
    if SCALED:
        at = (batch * tl.num_programs(1) + tl.program_id(1)) * heads + head
        sum_a, sum_b = tl.sum(ds_a, axis=0)[None, :], tl.sum(ds_b, axis=0)[None, :]
        sum_c = tl.sum(ds_c, axis=0)[None, :]
        at *= 2 * half + rest
        _store3(partial_ptr, at, True, sum_a, sum_b, sum_c, half, rest, HALF, REST)


def tiles(tile: int, time: int, d_k: int, half: int) -> tuple[int, int, int]:
    """BLOCK_T, HALF and REST: powers of two that cover a stretch of time and a head's pieces."""
    block_t = tile // covering(d_k)
    if time < block_t:
        block_t = covering(int(time))
    return block_t, covering(half), covering(max(d_k - 2 * half, 1))


@kernel_op("rope_norm")
def _rope_norm(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    x, cos, sin = _rows(x), cos.contiguous(), sin.contiguous()
    batch, heads, time, d_k = x.shape
    half = cos.shape[-1]
    y, r = torch.empty_like(x), x.new_empty(x.shape[:3], dtype=torch.float32)
    block_t, HALF, REST = tiles(TILE, time, d_k, half)
    group = min(HEADS, heads)
    grid = (blocks(time, block_t), blocks(heads, group), batch)
    wrap_triton(_forward)[grid](
        x, cos, sin, None if scale is None else scale.contiguous(), y, r,
        *x.stride()[:3], *y.stride()[:3], _per_row(cos), time,
        heads, half, d_k - 2 * half, scale is not None, group, block_t, HALF, REST,
        num_warps=warps(block_t * d_k),
    )  # fmt: skip
    return y, r


@_rope_norm.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(_rows(x)), x.new_empty(x.shape[:3], dtype=torch.float32)


@kernel_op("rope_norm_backward")
def _rope_norm_backward(
    g: Tensor, x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | None, r: Tensor
) -> tuple[Tensor, Tensor]:
    g, x, cos, sin = _rows(g), _rows(x), cos.contiguous(), sin.contiguous()
    batch, heads, time, d_k = x.shape
    half = cos.shape[-1]
    dx = torch.empty_like(x)
    block_t, HALF, REST = tiles(TILE_BACK, time, d_k, half)
    grid = (heads, blocks(time, block_t * STEPS), batch)
    programs = 0 if scale is None else batch * grid[1]
    partial = x.new_empty(programs, heads, d_k, dtype=torch.float32)
    wrap_triton(_backward)[grid](
        g, x, cos, sin, None if scale is None else scale.contiguous(), r, dx, partial,
        *g.stride()[:3], *x.stride()[:3], *dx.stride()[:3], _per_row(cos), time,
        heads, half, d_k - 2 * half, scale is not None, STEPS, block_t, HALF, REST,
        num_warps=warps(block_t * d_k),
    )  # fmt: skip
    return dx, partial.sum(0)


@_rope_norm_backward.register_fake
def _(
    g: Tensor, x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | None, r: Tensor
) -> tuple[Tensor, Tensor]:
    ds = x.new_empty(x.shape[1], x.shape[3], dtype=torch.float32)
    return torch.empty_like(_rows(x)), ds


def _rows(x: Tensor) -> Tensor:
    """x with each head's d_k elements side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _per_row(table: Tensor) -> int:
    """From one batch row's table to the next: 0 where all share one."""
    return 0 if table.dim() == 2 else table.stride(0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _gradients(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    kept = ctx.saved_tensors  # asked for once: activation checkpointing allows no second time
    scale = kept[3]
    dx, ds = _rope_norm_backward(g, *kept)
    return dx, None, None, None if scale is None else ds.to(scale.dtype)


_rope_norm.register_autograd(_gradients, setup_context=_keep)


def rope_norm(
    x: Tensor, table: tuple[Tensor, Tensor], scale: Tensor | float | None = None
) -> Tensor:
    """`ops.rope.rope_norm`; the kernel has one scale an element, [H, d_k]: others are expanded."""
    if scale is not None:
        if not isinstance(scale, Tensor):
            scale = x.new_full((), scale, dtype=torch.float32)
        scale = scale.expand(x.shape[1], 1, x.shape[3])[:, 0]
    return _rope_norm(x, *table, scale)[0]
