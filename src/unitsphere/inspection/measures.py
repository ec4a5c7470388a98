"""The mathematics behind the probes, on plain tensors."""

import torch
from torch import Tensor


def singular(matrices: Tensor) -> Tensor:
    """Singular values of [..., n, m], descending, in double precision: [..., min(n, m)]."""
    return torch.linalg.svdvals(matrices.double())


def condition(values: Tensor) -> Tensor:
    """Largest over smallest of singular values [..., n]; infinite for a singular matrix."""
    return values[..., 0] / values[..., -1]


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of singular values [..., n] as shares of their sum (Roy & Vetterli 2007).

    n for equal ones, 1 for a single one that is not 0.
    """
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p along the last axis, in nats."""
    return torch.special.entr(probabilities.float()).sum(-1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle in degrees between vectors along the last axis; exact for small ones too.

    2·atan2(‖â − b̂‖, ‖â + b̂‖) (Kahan): the cosine of a small angle is rounded to 1. A vector
    without a direction gives NaN.
    """
    a, b = a.double(), b.double()
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    half = torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))
    return torch.rad2deg(2 * half)
