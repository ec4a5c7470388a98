"""Linear maps whose outputs are scaled, of rows sorted by group, and of tokens.

`grouped_linear` has a matrix for each group. It is two torch operators, so that the compiler and
tensors without values see one product, whatever the sizes of the groups:
`torch.nn.functional.grouped_mm` on a GPU in bf16, elsewhere a loop.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

TOKENS_PER_WIDTH = 5
"""From this many tokens for each dimension of the input on, folding pays."""


def folds(x: Tensor) -> bool:
    """Whether a scale of the outputs for x [..., d] is cheaper in the weight than in the outputs.

    Folded, the scale costs passes over the weight's rows of d, and its gradient is a sum along
    them; else passes over the outputs, and a sum over all tokens. On a CPU
    folding pays from about 2·d tokens on (docs/results/speed.md), on a GPU from 5·d by derivation.
    An exported program has one form for every number of tokens.
    """
    return torch.compiler.is_exporting() or x.numel() >= TOKENS_PER_WIDTH * x.shape[-1] ** 2


def scaled_linear(x: Tensor, weight: Tensor, scale: Tensor | float | None) -> Tensor:
    """(x Wᵀ) ⊙ scale for x [..., d_in], W [d_out, d_in], a scale [d_out], scalar, number or none.

    Many tokens are multiplied by the scaled weight: the same numbers but for rounding, and no pass
    over the outputs in either direction (`folds` has the rule).
    """
    scale = unless_one(scale)
    if scale is None or folds(x):
        return F.linear(x, scale_rows(weight, scale))
    return F.linear(x, weight) * scale


def unless_one(scale: Tensor | float | None) -> Tensor | float | None:
    """The scale, or none for the constant 1."""
    return None if not isinstance(scale, Tensor) and scale == 1 else scale


def scale_rows(weight: Tensor, scale: Tensor | float | None) -> Tensor:
    """scale ⊙ weight, row by row: a linear layer's outputs are scaled by its weight's rows."""
    scale = unless_one(scale)
    if scale is None:
        return weight
    if isinstance(scale, Tensor) and scale.dim() == 1:
        return scale[:, None] * weight
    return scale * weight


def product_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """In which type a matrix product of the two is computed: autocast's where that is on."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return torch.promote_types(x.dtype, weight.dtype)


def lookup(tokens: Tensor, weight: Tensor) -> Tensor:
    """The rows of weight [V, d] for int64 tokens [...]: [..., d].

    Compiled to train on a CPU it is an operator of its own: what the compiler makes of the gradient
    lets several threads add to a row in any order, so that no run is the same twice.
    """
    trains = torch.compiler.is_compiling() and torch.is_grad_enabled()
    if trains and weight.device.type == "cpu":
        return _lookup(tokens, weight)
    return F.embedding(tokens, weight)


@custom_op("unitsphere::lookup", mutates_args=())
def _lookup(tokens: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(tokens, weight)


@custom_op("unitsphere::lookup_sums", mutates_args=())
def _sums(g: Tensor, tokens: Tensor, rows: int) -> Tensor:
    """For each row of the weight the sum of g [..., d] over its tokens: [rows, d]."""
    return torch.ops.aten.embedding_dense_backward(g, tokens, rows, -1, False)


@_lookup.register_fake
def _(tokens: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty(*tokens.shape, weight.shape[1])


@_sums.register_fake
def _(g: Tensor, tokens: Tensor, rows: int) -> Tensor:
    return g.new_empty(rows, g.shape[-1])


def _keep_tokens(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    tokens, weight = inputs
    ctx.save_for_backward(tokens)
    ctx.rows = len(weight)


def _lookup_backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
    (tokens,) = ctx.saved_tensors
    return None, _sums(g.contiguous(), tokens, ctx.rows)


_lookup.register_autograd(_lookup_backward, setup_context=_keep_tokens)


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x Wᵀ, each row of x with the matrix W of its group.

    x: [n, d_in], sorted by group. weight: [G, d_out, d_in]. ends: int32 [G], the row after the last
    of each group. Returns [n, d_out].
    """
    dtype = product_dtype(x, weight)
    return _linear(x.to(dtype), weight.to(dtype), ends)


@custom_op("unitsphere::grouped_linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if _fast(x, weight):
        return F.grouped_mm(x, weight.mT, offs=ends)
    y = x.new_empty(len(x), weight.shape[1])
    for W, rows in zip(weight, _rows(ends), strict=True):
        torch.mm(x[rows], W.T, out=y[rows])
    return y


@custom_op("unitsphere::grouped_outer", mutates_args=())
def _outer(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """yᵀ x of the rows of each group: [G, d_out, d_in]."""
    if _fast(x, y):
        return F.grouped_mm(y.mT, x, offs=ends)
    return torch.stack([y[rows].T @ x[rows] for rows in _rows(ends)])


def _fast(x: Tensor, y: Tensor) -> bool:
    """Whether torch's kernel takes them: bf16 on a GPU, sides of whole 16 bytes."""
    sides = (x.shape[1], *y.shape[1:])
    return x.is_cuda and x.dtype == torch.bfloat16 and not any(side % 8 for side in sides)


def _rows(ends: Tensor) -> list[slice]:
    return [slice(first, end) for first, end in pairwise([0, *ends.tolist()])]


@_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_outer.register_fake
def _(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], y.shape[1], x.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    g = g.contiguous()
    dx = _linear(g, weight.mT.contiguous(), ends) if ctx.needs_input_grad[0] else None
    dW = _outer(g, x, ends) if ctx.needs_input_grad[1] else None
    return dx, dW, None


_linear.register_autograd(_backward, setup_context=_keep)
