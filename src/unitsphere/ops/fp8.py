"""A linear map whose three matrix products run in FP8, on torch's scaled matrix product.

| product | factors | used for |
|---|---|---|
| y = x Wᵀ | e4m3 × e4m3 | the outputs |
| dx = dy W | e5m2 × e4m3 | the inputs' gradient |
| dW = dyᵀ x | e5m2 × e4m3 | the weight's gradient |

A tensor is multiplied by one scale before it is rounded, and the product divided by it again:

| tensor | scale |
|---|---|
| elements within a bound that is known | 256/bound: no pass over the tensor to find its largest |
| any other x or W | 448/(largest), 448 being e4m3's largest number |
| dy | 57344/(largest), 57344 being e5m2's largest number |

256 is a power of two, so scaling rounds nothing, and leaves 1.75 times the bound before an element
is clamped: what rounding adds to a unit vector fits. FP8 is floating point: a bound that is a few
times too wide costs nothing but the smallest elements. Sums are in fp32. A CPU computes the same
products from the rounded numbers in fp32, slowly: good for looking at the rounding.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op
from torch.nn.functional import ScalingType, scaled_mm

from unitsphere.ops.linear import product_dtype, scale_rows

STATIC = 256.0
"""Scale of numbers within 1."""
MULTIPLE = 16
"""What the sizes of a matrix must be multiples of."""
SMALLEST = 1e-30
"""The smallest factor: the one of zeros, which stay zeros."""
X_TYPE, DY_TYPE = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Bounded:
    """The largest |element| that x and W can have; None: not known."""

    x: float | None = None
    weight: float | None = None


class Rounded(NamedTuple):
    """A matrix in FP8, and what its numbers are to be multiplied by, a scalar in fp32."""

    matrix: Tensor
    factor: Tensor


def fp8_linear(
    x: Tensor, weight: Tensor, scale: Tensor | float | None = None, bounded: Bounded = Bounded()
) -> Tensor:
    """(x Wᵀ) ⊙ scale for x [..., d_in], W [d_out, d_in], a scale [d_out], scalar, number or none.

    The scale is always folded into the weight, whose bound is then the largest |scale|. d_in and
    d_out must be multiples of 16. The result has the type of a plain product.
    """
    w_bound: Tensor | float | None = bounded.weight
    if w_bound is not None and scale is not None:
        largest = scale.detach().abs().amax() if isinstance(scale, Tensor) else abs(scale)
        w_bound = w_bound * largest
    rows = x.reshape(-1, x.shape[-1])
    missing = -len(rows) % MULTIPLE  # dW sums over the rows: zeros make them a multiple too
    if missing:
        rows = F.pad(rows, (0, 0, 0, missing))
    dtype = product_dtype(x, weight)
    y = _Linear.apply(rows, scale_rows(weight, scale), bounded.x, w_bound, dtype)
    return y[: len(rows) - missing].reshape(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        x_bound: float | None,
        w_bound: Tensor | float | None,
        dtype: torch.dtype,
    ) -> Tensor:
        x8, w8 = rounded(x, X_TYPE, x_bound), rounded(weight, X_TYPE, w_bound)
        ctx.save_for_backward(*x8, *w8)
        ctx.types = x.dtype, weight.dtype
        return product(x8, w8, dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, x_factor, weight, w_factor = ctx.saved_tensors
        x_type, w_type = ctx.types
        dy8 = rounded(dy, DY_TYPE, None)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = product(dy8, Rounded(weight.t().contiguous(), w_factor), x_type)
        if ctx.needs_input_grad[1]:
            across = Rounded(dy8.matrix.t().contiguous(), dy8.factor)
            dw = product(across, Rounded(x.t().contiguous(), x_factor), w_type)
        return dx, dw, None, None, None


def rounded(x: Tensor, dtype: torch.dtype, bound: Tensor | float | None) -> Rounded:
    """x in an FP8 type: static for a bound on |x|, else by its largest element.

    What is beyond the type's largest number is clamped to it; NaN stays NaN.
    """
    largest = torch.finfo(dtype).max
    if bound is None:
        factor = x.abs().amax().float() / largest
    else:
        factor = x.new_full((), 1 / STATIC, dtype=torch.float32) * bound
    factor = factor.clamp(min=SMALLEST)
    return Rounded((x.float() / factor).clamp(-largest, largest).to(dtype), factor)


def product(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    """a bᵀ of a [n, k] and b [m, k], both contiguous: the only layout that every chip takes."""
    return _product(a.matrix, a.factor, b.matrix, b.factor, dtype)


# An operator of our own, because torch 2.11 cannot compile scaled_mm.
@custom_op("unitsphere::scaled_product", mutates_args=())
def _product(
    a: Tensor, a_factor: Tensor, b: Tensor, b_factor: Tensor, dtype: torch.dtype
) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):  # a CPU's sums would be in bf16
        return scaled_mm(
            a,
            b.t(),
            a_factor,
            ScalingType.TensorWise,
            b_factor,
            ScalingType.TensorWise,
            output_dtype=dtype,
        )


@_product.register_fake
def _(a: Tensor, a_factor: Tensor, b: Tensor, b_factor: Tensor, dtype: torch.dtype) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0], dtype=dtype)
