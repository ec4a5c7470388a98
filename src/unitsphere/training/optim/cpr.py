"""Constrained Parameter Regularization: ‖W‖² kept below κ by a Lagrange multiplier λ a matrix.

Franke et al., arXiv 2311.09058 (reference [13] of the anGPT paper), in place of weight decay:

    R = ‖W‖²,  λ ← max(0, λ + (R − κ)/numel),  W ← W − 2λW      after each step of the optimizer

| κ | its value |
|---|---|
| Kappa-K | `value`, the same for every matrix |
| Kappa-kI0 | `value` × R at the start |
| Kappa-WS | R after `warm_steps` steps |
| Kappa-IP | R at the first inflection of its curve: where a change is smaller than the one before |

For Kappa-IP the curve is an exponential average of R that starts at R's first value, read every
`sample_every` steps. Before it is set κ is infinite, so that λ = 0 and nothing is regularized.
The authors' package differs between its loop and its foreach form in that average (from 0, or
of ‖W‖), in when it reads it and in what counts as unset; here one form, outside the
optimizer, serves loop, foreach and fused alike.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.config import check_choices
from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local
from unitsphere.ops.project import length
from unitsphere.training.optim.state import Slot, StateSpec, StepHook, rates, skipped


@dataclass(frozen=True)
class CPRConfig:
    """How CPR finds its bounds κ."""

    kappa: Literal["Kappa-K", "Kappa-kI0", "Kappa-WS", "Kappa-IP"] = "Kappa-WS"
    """the paper's names: a constant, a multiple of the initial ‖W‖², its value after a warm
    start, or its value at the first inflection point"""
    value: float = 1.0
    """Kappa-K: κ; Kappa-kI0: κ divided by the initial ‖W‖²"""
    warm_steps: int | None = None
    """Kappa-WS: steps until κ is taken; none: the schedule's warm-up"""
    sample_every: int = 200
    """Kappa-IP: steps between two readings of ‖W‖² (the authors' value)"""
    average: float = 0.99
    """Kappa-IP: decay of the average of ‖W‖² (the authors' value)"""

    def __post_init__(self) -> None:
        check_choices(self, "optim.constraint.cpr.")
        if self.value < 0:
            raise UserError(f"cpr.value must not be negative: {self.value}")
        if self.warm_steps is not None and self.warm_steps < 1:
            raise UserError(f"cpr.warm_steps must be at least 1: {self.warm_steps}")
        if self.sample_every < 1:
            raise UserError(f"cpr.sample_every must be at least 1: {self.sample_every}")
        if not 0 <= self.average < 1:
            raise UserError(f"cpr.average must be at least 0 and below 1: {self.average}")


State = dict[str, Any]


class CPR(StepHook):
    """Regularizes matrices after each step.

    Everything that it remembers is in the optimizer's state of a matrix: "lambda", "kappa",
    "cpr_steps", and for Kappa-IP "cpr_average", "reading", "change". All stay on the device.
    """

    def __init__(self, weights: list[Tensor], config: CPRConfig, warmup: int = 0) -> None:
        if any(weight.dim() > 2 for weight in weights):
            raise UserError("constraint 'cpr' has no form for experts: take another one")
        self.weights, self.config = weights, config
        self.warm_steps = warmup if config.warm_steps is None else config.warm_steps
        if config.kappa == "Kappa-WS" and not self.warm_steps:
            raise UserError("Kappa-WS needs a schedule.warmup, or warm_steps under cpr")
        self.start = [square(weight) for weight in weights]

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """What `first` makes."""
        return {
            name: Slot((), number.dtype)
            for weight, start in zip(self.weights, self.start, strict=True)
            if weight is parameter
            for name, number in self.first(start).items()
        }

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """λ, then W; nothing in a step that the gradient scaler made the optimizer skip.

        Nor at rate 0, with which torch steps before it loads a state (see `Frobenius`).
        """
        if skipped(optimizer):
            return
        rate = rates(optimizer)
        for weight, start in zip(self.weights, self.start, strict=True):
            if weight.grad is None:
                continue
            state = optimizer.state[weight]
            if "lambda" not in state:
                state |= self.first(start)
            if rate[id(weight)] == 0:
                continue
            R = square(weight)
            state["cpr_steps"] += 1
            if self.config.kappa == "Kappa-WS":
                self.warm_start(state, R)
            elif self.config.kappa == "Kappa-IP":
                self.inflection(state, R)
            state["lambda"].add_((R - state["kappa"]) / weight.numel()).clamp_(min=0)
            local(weight).mul_(1 - 2 * state["lambda"])

    def first(self, start: Tensor) -> State:
        """The state before the first step of a matrix whose ‖W‖² was `start`."""
        config, zero = self.config, torch.zeros_like(start)
        kappa = {"Kappa-K": zero + config.value, "Kappa-kI0": config.value * start}
        state = {
            "lambda": zero,
            "kappa": kappa.get(config.kappa, zero + math.inf),
            "cpr_steps": zero.clone(),
        }
        if config.kappa == "Kappa-IP":
            state |= {"cpr_average": start.clone(), "reading": start.clone()}
            state["change"] = zero - math.inf
        return state

    def warm_start(self, state: State, R: Tensor) -> None:
        """Kappa-WS: κ ← R after the warm start."""
        state["kappa"] = torch.where(state["cpr_steps"] == self.warm_steps, R, state["kappa"])

    def inflection(self, state: State, R: Tensor) -> None:
        """Kappa-IP: κ ← R where the average of R, read now and then, first rises less."""
        state["cpr_average"].lerp_(R, 1 - self.config.average)
        due = state["cpr_steps"] % self.config.sample_every == 0
        change = state["cpr_average"] - state["reading"]
        found = due & (change < state["change"]) & state["kappa"].isinf()
        state["kappa"] = torch.where(found, R, state["kappa"])
        state["reading"] = torch.where(due, state["cpr_average"], state["reading"])
        state["change"] = torch.where(due, change, state["change"])


def square(weight: Tensor) -> Tensor:
    """R = ‖W‖², a scalar."""
    return length(weight.detach(), (0, 1)).squeeze().square()
