"""Adam's step, the projection and a narrow copy of the weight, in one pass over a matrix.

A program takes a few whole vectors, along either axis. Vectors that fit into a tile stay in
registers between step and projection; longer ones are read once more, while still in the cache.
Bias corrections 1 − βⁿ are taken in fp64: in fp32 they would lose their digits for β near 1.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from unitsphere.kernels.gpu.library import blocks, covering, kernel_op, reciprocal, warps
from unitsphere.ops.project import AdamSettings, Target

LONGEST_TILE = 4096  # elements of one contiguous vector that a tile holds
COLUMNS = 16  # vectors side by side, if each spans the rows
ROWS = 128  # of their elements that a tile holds


@triton.jit
def _stepped(
    weight_ptr, gradient_ptr, exp_avg_ptr, exp_avg_sq_ptr, at, inside,
    keep, decay, lerp1, beta2, lerp2, rate, bias2, eps,
):  # fmt: skip
    """The weights after Adam's step; writes the moments."""
    w = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(exp_avg_ptr + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(exp_avg_sq_ptr + at, mask=inside, other=0.0).to(tl.float32)
    g += decay * w
    m += lerp1 * (g - m)
    v = beta2 * v + lerp2 * g * g
    tl.store(exp_avg_ptr + at, m, mask=inside)
    tl.store(exp_avg_sq_ptr + at, v, mask=inside)
    return keep * w - rate * m / (tl.sqrt(v / bias2) + eps)


@triton.jit
def _factor(square, radius, SPHERE: tl.constexpr):
    factor = radius * reciprocal(square)
    if not SPHERE:
        factor = tl.minimum(factor, 1.0)
    return factor[:, None]


@triton.jit
def _adam_project(
    weight_ptr, gradient_ptr, exp_avg_ptr, exp_avg_sq_ptr, step_ptr, shadow_ptr,
    lr, log_beta1, lerp1, beta2, log_beta2, lerp2, eps, keep, decay, radius,
    vectors, stride_o, stride_v, length: tl.constexpr, SPHERE: tl.constexpr, SHADOW: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_V: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    n = tl.load(step_ptr).to(tl.float64)
    rate = lr / (1.0 - tl.exp(n * log_beta1)).to(tl.float32)
    bias2 = (1.0 - tl.exp(n * log_beta2)).to(tl.float32)
    vector = tl.program_id(0).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)[:, None]
    square = tl.zeros([BLOCK_O], dtype=tl.float32)
    for chunk in range(CHUNKS):
        element = (chunk * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)[None, :]
        at = vector * stride_o + element * stride_v
        inside = (vector < vectors) & (element < length)
        w = _stepped(
            weight_ptr, gradient_ptr, exp_avg_ptr, exp_avg_sq_ptr, at, inside,
            keep, decay, lerp1, beta2, lerp2, rate, bias2, eps,
        )  # fmt: skip
        square += tl.sum(w * w, axis=1)
        if CHUNKS == 1:
            w *= _factor(square, radius, SPHERE)
            if SHADOW:
                tl.store(shadow_ptr + at, w, mask=inside)
        tl.store(weight_ptr + at, w, mask=inside)
    if CHUNKS > 1:
        factor = _factor(square, radius, SPHERE)
        for chunk in range(CHUNKS):
            element = (chunk * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)[None, :]
            at = vector * stride_o + element * stride_v
            inside = (vector < vectors) & (element < length)
            w = factor * tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(weight_ptr + at, w, mask=inside)
            if SHADOW:
                tl.store(shadow_ptr + at, w, mask=inside)


def tiles(length: int, contiguous: bool) -> tuple[int, int]:
    """Vectors and elements of each that a tile covers."""
    if not contiguous:
        return COLUMNS, min(covering(length), ROWS)
    block_v = min(covering(length), LONGEST_TILE)
    return max(LONGEST_TILE // 2 // block_v, 1), block_v


@kernel_op("adam_project_", mutates_args=("weight", "exp_avg", "exp_avg_sq", "shadow"))
def _step(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    shadow: Tensor | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    keep: float,
    decay: float,
    sphere: bool,
    dim: int,
    radius: float,
) -> None:
    length, vectors = weight.shape[dim], weight.shape[1 - dim]
    contiguous = dim == 1
    block_o, block_v = tiles(length, contiguous)
    wrap_triton(_adam_project)[(blocks(vectors, block_o),)](
        weight, gradient.contiguous(), exp_avg, exp_avg_sq, step, shadow,
        lr, _log(beta1), 1 - beta1, beta2, _log(beta2), 1 - beta2, eps, keep, decay, radius,
        vectors, weight.stride(1 - dim), weight.stride(dim), length, sphere, shadow is not None,
        block_o, block_v, blocks(length, block_v), num_warps=warps(block_o * block_v),
    )  # fmt: skip


@_step.register_fake
def _(*arguments: object) -> None:
    """All is written in place: nothing has a shape to be told."""


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


@torch.no_grad()
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
    """`ops.project.adam_project_`."""
    lr, (beta1, beta2), eps, weight_decay, decoupled = adam
    keep = 1 - lr * weight_decay if decoupled else 1.0
    decay = 0.0 if decoupled else weight_decay
    _step(
        weight, gradient, exp_avg, exp_avg_sq, step, shadow,
        lr, beta1, beta2, eps, keep, decay, target.kind == "sphere", target.dim % 2, target.radius,
    )  # fmt: skip
    return weight
