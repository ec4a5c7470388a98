"""Weights rounded to few bits and back: what a model loses by it, on any machine.

| format | numbers | scale | bits per weight |
|---|---|---|---|
| `intB` | integers of B bits, −q to q, q = 2^(B−1) − 1 | one per row of W, 16 bits | B + 16/d_in |
| `intB:G` | the same | one for G weights of a row, 16 bits | B + 16/G |
| `fp8` | E4M3 | one per matrix: static where the vectors of W are bounded (`ops.fp8`) | 8 |
| `nvfp4` | E2M1: 0, ½, 1, 1½, 2, 3, 4, 6 | one for 16 weights in E4M3, one per matrix | 4.5 |

Integers are symmetric, their scale is largest/q. Only weights are rounded: products are taken of
the rounded weights (`dequantised`) in the model's precision, so a kernel which does the same has
this loss. Rows are those of W [d_out, d_in].
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.models.constraint import Bound, Role, constraints
from unitsphere.models.parts import Embedding, Linear
from unitsphere.ops.fp8 import X_TYPE, rounded

SCALE_BITS = 16
"""Of a scale of integers: fp16."""
SMALLEST = 2.0**-24
"""The smallest number above 0 that fp16 can hold."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes that FP4 can hold."""
NVFP4_BLOCK = 16
"""Weights that share a scale in NVFP4."""
E4M3_LARGEST = 448.0


@dataclass(frozen=True)
class Format:
    """A way to store weights, by the name in the table above."""

    name: str
    bits: int
    group: int | None = None
    """of integers: weights that share a scale; none: a row"""


@dataclass(frozen=True)
class Quantized:
    """What `quantize_` did: weights rounded, their bits with those of scales, and the error.

    error: root mean square of the weights' change, divided by the weights' own.
    """

    weights: int
    bits: float
    error: float


def read_format(name: str) -> Format:
    """The format of a name; a `UserError` for one that is not in the table."""
    if name in ("fp8", "nvfp4"):
        return Format(name, 8 if name == "fp8" else 4)
    number, colon, group = name.removeprefix("int").partition(":")
    known = name.startswith("int") and number.isdecimal() and 2 <= int(number) <= 8
    if not known or (colon and not (group.isdecimal() and int(group) > 0)):
        raise UserError(
            f"unknown format '{name}': give int2 to int8, one with a group such as int4:32, fp8 "
            "or nvfp4"
        )
    return Format(name, int(number), int(group) if colon else None)


@torch.no_grad()
def quantize_(
    model: nn.Module,
    form: Format,
    renormalize: bool = False,
    roles: Collection[Role] = ("matrix",),
) -> Quantized:
    """Round the weights of these roles ("matrix", "embedding", "head") in place, and back.

    With `renormalize` every vector that the model constrains goes back to its constraint
    afterwards: to length 1 on a sphere, to at most 1 in a ball. Raises UserError for a group that
    does not divide a row, and for roles that no weight has (the head's, of a tied model).
    """
    chosen = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear | Embedding) and role_of(module) in roles
    }
    if not chosen:
        raise UserError(f"no weight of {type(model).__name__} has one of the roles {sorted(roles)}")
    before = {name: module.matrix().clone() for name, module in chosen.items()}
    for name, module in chosen.items():
        module.weight.copy_(dequantised(before[name], form, module.bound))
    if renormalize:
        for constraint in constraints(model):
            if constraint.parameter.removesuffix(".weight") in chosen:
                constraint.project_(model.get_parameter(constraint.parameter))
    weights = sum(matrix.numel() for matrix in before.values())
    bits = sum(w.numel() * bits_per_weight(form, w.shape[-1]) for w in before.values())
    size = sum(w.double().square().sum().item() for w in before.values())
    change = sum(
        (chosen[name].matrix() - w).double().square().sum().item() for name, w in before.items()
    )
    return Quantized(weights, bits / weights, math.sqrt(change / size))


def check_group(model: nn.Module, form: Format, roles: Collection[Role] = ("matrix",)) -> None:
    """Raise the `UserError` of a group that does not divide a row, before any work."""
    size = NVFP4_BLOCK if form.name == "nvfp4" else form.group
    for module in model.modules():
        if size and isinstance(module, Linear | Embedding) and role_of(module) in roles:
            check_divides(size, module.matrix().shape[-1], form)


def role_of(module: Linear | Embedding) -> Role:
    """The role that a module's weight has."""
    return module.declare()["weight"].role


def bits_per_weight(form: Format, d_in: int) -> float:
    """Of a row of d_in weights, its scales included."""
    if form.name == "fp8":
        return 8.0
    if form.name == "nvfp4":
        return 4 + 8 / NVFP4_BLOCK
    return form.bits + SCALE_BITS / (form.group or d_in)


def dequantised(weight: Tensor, form: Format, bound: Bound | None = None) -> Tensor:
    """W [d_out, d_in] as it comes back from a format, in W's type; `bound` is its constraint.

    Of a stack [E, d_out, d_in] each matrix as if it were the only one.
    """
    if weight.dim() == 3:
        return torch.stack([dequantised(one, form, bound) for one in weight])
    if form.name == "fp8":
        eight = rounded(weight, X_TYPE, bound.radius if bound else None)
        return (eight.matrix.float() * eight.factor).to(weight.dtype)
    wide = weight.float()
    if form.name == "nvfp4":
        return nvfp4(grouped(wide, NVFP4_BLOCK, form)).reshape(weight.shape).to(weight.dtype)
    q, scale = codes(grouped(wide, form.group or weight.shape[1], form), form.bits)
    return (q * scale).reshape(weight.shape).to(weight.dtype)


def grouped(weight: Tensor, size: int, form: Format) -> Tensor:
    """[d_out, d_in] -> [d_out, d_in/size, size]."""
    check_divides(size, weight.shape[1], form)
    return weight.unflatten(1, (-1, size))


def check_divides(size: int, row: int, form: Format) -> None:
    """Raise a `UserError` unless a row of so many weights has whole groups."""
    if row % size:
        raise UserError(
            f"{form.name} has {size} weights to a scale, which do not divide a row of "
            f"{row}: take a smaller group"
        )


def codes(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Integers q of `bits` bits and one scale along the last axis, in fp16; both as floats."""
    largest = 2 ** (bits - 1) - 1
    scale = (groups.abs().amax(-1, keepdim=True) / largest).half().float()
    q = (groups / scale.clamp(min=SMALLEST)).round()
    return q.clamp(-largest, largest), scale


def nvfp4(groups: Tensor) -> Tensor:
    """Rounded to E2M1 times a scale along the last axis in E4M3 times one of all in fp32."""
    whole = groups.abs().amax().clamp(min=1e-30) / (E2M1[-1] * E4M3_LARGEST)
    local = (groups.abs().amax(-1, keepdim=True) / (E2M1[-1] * whole)).to(torch.float8_e4m3fn)
    scale = local.float() * whole
    return e2m1(groups / scale.clamp(min=1e-30)) * scale


def e2m1(x: Tensor) -> Tensor:
    """The nearest number of E2M1; a tie goes to the one with an even mantissa, as in IEEE 754."""
    levels = torch.tensor(E2M1, device=x.device, dtype=x.dtype)
    middles = (levels[1:] + levels[:-1]) / 2
    size = x.abs().contiguous()
    above = torch.bucketize(size, middles, right=True)
    below = torch.bucketize(size, middles, right=False)
    index = torch.where(above % 2 == 0, above, below)
    return levels[index] * x.sign()
