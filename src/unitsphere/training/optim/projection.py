"""What is kept of the weights, around each step of an optimizer.

`Projection` puts vectors back on spheres or into balls. Whole matrices keep their Frobenius norm,
the control for constraining vectors. R = ‖W₀‖_F is the norm when the constraint was set.

| constraint | after the optimizer moved W to W' | source |
|---|---|---|
| frobenius | W ← R·W'/‖W'‖_F | equation of AdamH and MuonH, to first order in the rate |
| hyperball | D = W' − W; W ← R·N(W + lr·R·N(D)), N(X) = X/‖X‖_F | arXiv 2606.16899 |

Hyperball keeps only the optimizer's direction, so a step has the angle arctan(lr) where it is
tangent; with Adam it is AdamH, with Muon MuonH (`optim.name` adamh, muonh: with the head). R is
kept in the optimizer's state as "radius"; with `norm = "before"` it is ‖W‖_F before each step
instead (MuonH's code, arXiv 2603.28743): the same but for rounding and moves made from outside.

`AngleCap` limits the angle by which a step turns a vector on its sphere ("Training nGPT",
2608.01284). For a vector w of length d that the optimizer moved to w̃, with the learning rate η
and κ:

| step | formula |
|---|---|
| largest angle | θ = κ·η·√d, since an entry moves about η under Adam, and the vector η·√d |
| tangent part | u = w̃ − ⟨w̃, ŵ⟩ŵ, with ŵ = w/‖w‖ |
| angle | φ = atan2(‖u‖, ⟨w̃, ŵ⟩) |
| if φ > θ | w̃ ← ‖w̃‖·(cos θ·ŵ + sin θ·u/‖u‖) |

Then the sphere's projection, which turns nothing. Input embeddings are left out, as in the paper.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.kernels import fused_step
from unitsphere.models.constraint import Constraint
from unitsphere.ops.dtensor import Axes, complete, local, placements
from unitsphere.ops.project import length, project_sphere_, project_tangent_
from unitsphere.training.optim.state import Slot, StateSpec, StepHook, rates

WHOLE = (-2, -1)
"""A matrix as one vector; of a stack of matrices each."""


class Projection(StepHook):
    """Projects those of an optimizer's tensors that are constrained; by a kernel in Adam's pass."""

    def __init__(self, held: list[tuple[Tensor, Constraint]]) -> None:
        self.held = held
        self.stepped: dict[Tensor, Tensor] = {}

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Step and project what the kernel can serve, in the optimizer's place."""
        if ready and self.undisturbed(optimizer):
            self.stepped = fused_step(optimizer, self.held)

    def undisturbed(self, optimizer: Optimizer) -> bool:
        """Whether no other hook acts between `before` and `after`, when the gradients are away.

        Another's may clip gradients, average weights or replace the step (`AdamH`).
        """
        pre = list(optimizer._optimizer_step_pre_hooks.values())
        post = list(optimizer._optimizer_step_post_hooks.values())
        if self._before not in pre or self._after not in post:
            return False
        pre, post = pre[pre.index(self._before) + 1 :], post[: post.index(self._after)]
        return not any(acts(call, "before") for call in pre) and not any(
            acts(call, "after") for call in post
        )

    def after(self, optimizer: Optimizer) -> None:
        """Project every other held tensor in place, unless it is frozen or in no group."""
        mine = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        for weight, constraint in self.held:
            if weight in self.stepped:
                weight.grad = self.stepped.pop(weight)
            elif id(weight) in mine and (weight.requires_grad or weight.grad is not None):
                constraint.project_(weight)


def acts(call: Any, step: Literal["before", "after"]) -> bool:
    """Whether a hook's `call` needs gradients or a step that `Projection` has taken away."""
    owner = getattr(call, "__self__", None)
    if not isinstance(owner, StepHook):
        return True
    harmless = isinstance(owner, Projection) or (step == "after" and isinstance(owner, AngleCap))
    return not harmless and getattr(type(owner), step) is not getattr(StepHook, step)


class Tangent(StepHook):
    """Riemannian gradients: takes out of each gradient what would change its vector's length.

    This is the project's own (nGPT's A.4 is about steps of h, not about gradients of weights).
    """

    of_gradients = True

    def __init__(self, held: list[tuple[Tensor, Axes]]) -> None:
        self.held = held

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """g ← g − w⟨w, g⟩/⟨w, w⟩."""
        for weight, dim in self.held:
            if weight.grad is not None:
                project_tangent_(weight.grad, weight, dim)


class Frobenius(StepHook):
    """Puts each matrix back on the Frobenius sphere of its initial radius."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        if any(w.dim() > 2 and placements(w) for w in weights):
            raise UserError(
                "a constant Frobenius norm of each expert is not kept over several processes: take "
                "parallel.dp_shard 1, or another optim.constraint.kind"
            )
        self.start = [length(w.detach(), WHOLE).squeeze(WHOLE) for w in weights]

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The radius."""
        held = any(weight is parameter for weight in self.weights)
        stack = tuple(parameter.shape[:-2])
        return {"radius": Slot(stack, self.start[0].dtype)} if held else {}

    def after(self, optimizer: Optimizer) -> None:
        """Project, unless the rate is 0.

        torch makes a step of rate 0 before it loads a state, perhaps beside weights of other norms
        (`set_optimizer_state_dict`).
        """
        rate = rates(optimizer)
        for weight, radius in self.radii(optimizer):
            if rate[id(weight)] != 0:
                project_sphere_(weight, WHOLE, radius)

    def radii(self, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
        """Each matrix that was stepped, and its radius: the state's, so that it can be reloaded."""
        return [
            (weight, optimizer.state[weight].setdefault("radius", start)[..., None, None])
            for weight, start in zip(self.weights, self.start, strict=True)
            if weight.grad is not None  # an optimizer takes any state for a step done
        ]


class Hyperball(Frobenius):
    """Steps of the relative length lr along the optimizer's direction, then the sphere."""

    def __init__(self, weights: list[Tensor], norm: Literal["start", "before"] = "start") -> None:
        super().__init__(weights)
        self.norm: Literal["start", "before"] = norm
        self.previous: list[Tensor] = []

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The radius, if it is the start's."""
        return super().state_spec(parameter) if self.norm == "start" else {}

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Keep the weights as they are before the step."""
        self.previous = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Replace the step by one of length lr·R in its direction, and project; not at rate 0."""
        rate = rates(optimizer)
        previous = {id(w): old for w, old in zip(self.weights, self.previous, strict=True)}
        for weight, radius in self.radii(optimizer):
            if rate[id(weight)] == 0:
                continue
            old = previous[id(weight)]
            direction = project_sphere_(weight - old, WHOLE, radius)
            weight.copy_(old.add_(direction.mul_(rate[id(weight)])))
            project_sphere_(weight, WHOLE, radius)
        self.previous = []

    def radii(self, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
        """Each matrix that was stepped, and its radius: the start's, or that before the step."""
        if self.norm == "start":
            return super().radii(optimizer)
        return [
            (weight, length(old, WHOLE))
            for weight, old in zip(self.weights, self.previous, strict=True)
            if weight.grad is not None
        ]


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
        rate = rates(optimizer)
        for (weight, dim), old in zip(self.held, self.previous, strict=True):
            if id(weight) not in rate:  # frozen: no group has it yet
                continue
            axes = (dim,) if isinstance(dim, int) else dim
            size = math.prod(weight.shape[axis] for axis in axes)
            cap_angle_(weight, old, dim, self.kappa * rate[id(weight)] * size**0.5)
        self.previous = []


@torch.no_grad()
def cap_angle_(weight: Tensor, old: Tensor, dim: Axes, theta: float) -> Tensor:
    """Turn each vector of `weight` along `dim` back to the angle `theta` to the vector of `old`.

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
