"""Projections of stored weights onto their constraint, in place, lengths taken in fp32 or wider.

A weight may be a DTensor, spread over processes. Where each holds whole vectors, it projects its
own and nothing is communicated; where a shard cuts them, the lengths are summed over processes.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unitsphere.ops.dtensor import Axes, complete, local, placements, spreads_vectors

NO_LENGTH = 1e-30  # vectors no longer than this count as zero


def length(weight: Tensor, dim: Axes) -> Tensor:
    """‖w‖ for every vector along `dim`, that axis kept with size 1; of those held here."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if placements(weight):  # rarely, and small matrices wait for Python
        if spreads_vectors(weight, dim):
            norm = torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)
            return local(complete(norm))
        weight = local(weight)
    if dim == 0 and weight.device.type == "cpu":  # where vector_norm takes 5 to 10 times as long
        return weight.to(wide).square().sum(0, keepdim=True).sqrt_()
    return torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)


@torch.no_grad()
def project_sphere_(weight: Tensor, dim: Axes, radius: float | Tensor = 1.0) -> Tensor:
    """w ← radius · w/‖w‖ for every vector along `dim` (nGPT §2.6, step 2); zero vectors stay."""
    factor = length(weight, dim).clamp_(min=NO_LENGTH).reciprocal_().mul_(radius)
    local(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_ball_(weight: Tensor, dim: Axes, radius: float = 1.0) -> Tensor:
    """w ← w · min(1, radius/‖w‖) for every vector along `dim` (anGPT §4.2)."""
    factor = length(weight, dim).reciprocal_().mul_(radius).clamp_(max=1)
    local(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_tangent_(gradient: Tensor, weight: Tensor, dim: Axes) -> Tensor:
    """g ← g − w⟨w, g⟩/⟨w, w⟩ for every vector along `dim`: the part that turns w.

    This is the project's own, not a paper's. The gradient of a zero vector stays.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    w = weight.to(wide)
    square = local(complete(w.square().sum(dim, keepdim=True)))
    share = local(complete((w * gradient).sum(dim, keepdim=True))) / square.masked_fill_(
        square == 0, 1
    )
    local(gradient).sub_(local(w).mul(share).to(gradient.dtype))
    return gradient


PROJECTIONS = {"sphere": project_sphere_, "ball": project_ball_}
"""The projections by the constraint's kind."""


class AdamSettings(NamedTuple):
    """The numbers of a step of Adam, by torch's names."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool = False
    """AdamW: the decay takes w ← w − lr·λw; otherwise it adds λw to the gradient"""


class Target(NamedTuple):
    """The set that vectors along `dim` are projected onto: length = `radius`, or at most that."""

    kind: Literal["sphere", "ball"]
    dim: int
    radius: float = 1.0


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
    """One step of Adam on a weight [out, in], then its projection onto `target`; both in place.

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  w ← w − lr·m̂/(√v̂ + eps), m̂ = m/(1−β₁ⁿ) and
    v̂ = v/(1−β₂ⁿ) (Kingma & Ba 2015, Algorithm 1), as `torch.optim.Adam` computes it.

    `exp_avg` m and `exp_avg_sq` v, shaped as the weight, and `step` n, a scalar tensor that counts
    this step too, are torch's state of the same names. `shadow`, a tensor shaped as the weight in
    a narrower dtype, receives a rounded copy. Returns the weight.
    """
    lr, (beta1, beta2), eps, weight_decay, decoupled = adam
    if weight_decay and not decoupled:
        gradient = gradient + weight_decay * weight
    elif weight_decay:
        weight.mul_(1 - lr * weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    n = step.item()
    length = (exp_avg_sq / (1 - beta2**n)).sqrt_().add_(eps)
    weight.addcdiv_(exp_avg, length, value=-lr / (1 - beta1**n))
    PROJECTIONS[target.kind](weight, target.dim, target.radius)
    if shadow is not None:
        shadow.copy_(weight)
    return weight
