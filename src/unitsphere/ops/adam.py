"""Adam's step and the projection that follows it, for one matrix."""

from typing import Literal

import torch
from torch import Tensor

from unitsphere.ops.project import PROJECTIONS


@torch.no_grad()
def adam_project_(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    kind: Literal["sphere", "ball"],
    dim: int,
    radius: float = 1.0,
    decoupled: bool = False,
    shadow: Tensor | None = None,
) -> Tensor:
    """One step of Adam on a weight [out, in], then its projection along `dim`; both in place.

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  w ← w − lr·m̂/(√v̂ + eps), m̂ = m/(1−β₁ⁿ) and
    v̂ = v/(1−β₂ⁿ) (Kingma & Ba 2015, Algorithm 1), as `torch.optim.Adam` computes it; then every
    vector of w along `dim` is put at the length `radius` (sphere) or at most there (ball).

    `exp_avg` m and `exp_avg_sq` v, shaped as the weight, and `step` n, a scalar tensor that counts
    this step too, are torch's state of the same names. `weight_decay` λ adds λw to the gradient
    (Adam) or, if `decoupled`, first takes w ← w − lr·λw (AdamW). `shadow`, a tensor shaped as the
    weight in a narrower dtype, receives a rounded copy. Returns the weight.
    """
    if weight_decay and not decoupled:
        gradient = gradient + weight_decay * weight
    elif weight_decay:
        weight.mul_(1 - lr * weight_decay)
    beta1, beta2 = betas
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    n = step.item()
    length = (exp_avg_sq / (1 - beta2**n)).sqrt_().add_(eps)
    weight.addcdiv_(exp_avg, length, value=-lr / (1 - beta1**n))
    PROJECTIONS[kind](weight, dim, radius)
    if shadow is not None:
        shadow.copy_(weight)
    return weight
