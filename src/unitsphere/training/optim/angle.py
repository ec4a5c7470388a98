"""The cap on the angle by which a step turns a vector on its sphere ("Training nGPT", 2608.01284).

For a vector w of length d that the optimizer moved to w̃, with the learning rate η and κ:

| step | formula |
|---|---|
| largest angle | θ = κ·η·√d, since an entry moves about η under Adam, and the vector η·√d |
| tangent part | u = w̃ − ⟨w̃, ŵ⟩ŵ, with ŵ = w/‖w‖ |
| angle | φ = atan2(‖u‖, ⟨w̃, ŵ⟩) |
| if φ > θ | w̃ ← ‖w̃‖·(cos θ·ŵ + sin θ·u/‖u‖) |

Then the sphere's projection, which turns nothing. Input embeddings are left out, as in the paper.
"""

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.ops.dtensor import Axes, complete, local
from unitsphere.ops.project import length
from unitsphere.training.optim.state import StepHook


class AngleCap(StepHook):
    """Keeps the step of every vector of `held`, weights with their axis, within θ."""

    def __init__(self, held: list[tuple[Tensor, Axes]], kappa: float) -> None:
        self.held, self.kappa = held, kappa
        self.previous: list[Tensor] = []

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Keep the weights as they are before the step."""
        self.previous = [weight.detach().clone() for weight, _ in self.held]

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Turn back what has turned too far."""
        rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        for (weight, dim), old in zip(self.held, self.previous, strict=True):
            size = weight.shape[dim] if isinstance(dim, int) else weight.numel()
            cap_angle_(weight, old, dim, self.kappa * rate[id(weight)] * size**0.5)
        self.previous = []


@torch.no_grad()
def cap_angle_(weight: Tensor, old: Tensor, dim: Axes, theta: float) -> Tensor:
    """Turn each vector of `weight` along `dim` back to the angle `theta` to that of `old`.

    A shorter turn and the length stay as they are, and so do vectors that are zero.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    radius, before = length(weight.detach(), dim), length(old, dim)
    new, start = weight.detach().to(wide), old.to(wide)
    inner = local(complete((new * start).sum(dim, keepdim=True)))
    along = inner / before.masked_fill(before == 0, 1)  # ⟨w̃, ŵ⟩
    direction = local(start) / before.masked_fill(before == 0, 1)
    tangent = new.clone()
    local(tangent).sub_(along * direction)
    across = length(tangent, dim)
    too_far = (torch.atan2(across, along) > theta) & (before > 0) & (across > 0)
    side = local(tangent) / across.masked_fill(across == 0, 1)
    turned = radius * (math.cos(theta) * direction + math.sin(theta) * side)
    held = local(weight.detach())
    held.copy_(torch.where(too_far, turned.to(held.dtype), held))
    return weight
