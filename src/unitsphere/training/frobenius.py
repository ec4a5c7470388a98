"""Matrices of constant Frobenius norm: the control for constraining vectors.

R = ‖W₀‖_F is the norm when the constraint was set.

| constraint | after the optimizer moved W to W' | source |
|---|---|---|
| frobenius | W ← R·W'/‖W'‖_F | equation of AdamH and MuonH, to first order in the rate |
| hyperball | D = W' − W; W ← R·N(W + lr·R·N(D)), N(X) = X/‖X‖_F | arXiv 2606.16899 |

Hyperball keeps the optimizer's direction alone, so a step has the angle arctan(lr) where it is
tangent; with Adam it is AdamH, with Muon MuonH. R is kept in the optimizer's state as "radius".
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.ops.project import length, project_sphere_
from unitsphere.training.hooks import StepHook

WHOLE = (0, 1)


class Frobenius(StepHook):
    """Puts each matrix back on the Frobenius sphere of its initial radius."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        self.start = [length(w.detach(), WHOLE).squeeze() for w in weights]

    def remembers(self) -> dict[Tensor, frozenset[str]]:
        """Each radius."""
        return dict.fromkeys(self.weights, frozenset({"radius"}))

    def after(self, optimizer: Optimizer) -> None:
        """Project."""
        for weight, radius in self.radii(optimizer):
            project_sphere_(weight, WHOLE, radius)

    def radii(self, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
        """Each matrix that was stepped, and its radius: the state's, so that it can be reloaded."""
        return [
            (weight, optimizer.state[weight].setdefault("radius", start))
            for weight, start in zip(self.weights, self.start, strict=True)
            if weight.grad is not None  # an optimizer takes any state for a step done
        ]


class Hyperball(Frobenius):
    """Steps of the relative length lr along the optimizer's direction, then the sphere."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__(weights)
        self.previous: list[Tensor] = []

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """Keep the weights that the step starts from."""
        self.previous = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Replace the step by one of length lr·R in its direction, and project."""
        rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        previous = {id(w): old for w, old in zip(self.weights, self.previous, strict=True)}
        self.previous = []
        for weight, radius in self.radii(optimizer):
            old = previous[id(weight)]
            direction = project_sphere_(weight - old, WHOLE, radius)
            weight.copy_(old.add_(direction.mul_(rate[id(weight)])))
            project_sphere_(weight, WHOLE, radius)
