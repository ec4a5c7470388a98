"""Linear maps whose outputs are scaled."""

import torch
import torch.nn.functional as F
from torch import Tensor

TOKENS_PER_WIDTH = 5
"""From this many tokens for each dimension of the input on, folding pays."""


def folds(x: Tensor) -> bool:
    """Whether a scale of the outputs for x [..., d] is cheaper in the weight than in the outputs.

    Folded, the scale costs passes over the weight's rows of d, and its gradient is a sum along
    them; else passes over the outputs, and a sum over all tokens. On a CPU
    folding pays from about 2·d tokens on (docs/results/speed.md), on a GPU from 5·d by derivation.
    """
    return x.numel() >= TOKENS_PER_WIDTH * x.shape[-1] ** 2


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
