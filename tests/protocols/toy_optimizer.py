"""A new optimizer, all of it: matrices by two factors of their sides, as SOAP keeps, else AdamW.

| tensor of W [m, n] | shape | is |
|---|---|---|
| left, right | [m, m], [n, n], fp32 | averages of G Gᵀ and Gᵀ G, the same in every process |
| momentum | [m, n], spread as W is | average of G |

W ← W − lr · L^(−p) M R^(−p). Its line in the registry is `LINE`.
"""

from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local, part_of, whole
from unitsphere.training.optim.adam import with_adam
from unitsphere.training.optim.registry import Definition
from unitsphere.training.optim.state import Slot, like

LINE = {"toy-factors": "toy_optimizer:TOY"}


@dataclass(frozen=True)
class ToyConfig:
    """Keys of its own: `optim.toy_factors.*`."""

    decay: float = 0.9
    """decay of the averages"""
    power: float = 0.25
    """p"""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise UserError(f"optim.toy_factors.decay must be from 0 to below 1: {self.decay}")


class Toy(Optimizer):
    """The table above."""

    def __init__(self, params, lr=1e-3, decay=0.9, power=0.25):
        super().__init__(params, {"lr": lr, "decay": decay, "power": power})

    def state_spec(self, parameter):
        m, n = parameter.shape
        return {"left": Slot((m, m)), "right": Slot((n, n)), "momentum": like(parameter)}

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, group["lr"], group["decay"], group["power"])

    def move(self, weight, lr, decay, power):
        state, gradient = self.state[weight], whole(weight.grad).float()
        if not state:
            state["left"] = gradient.new_zeros(len(gradient), len(gradient))
            state["right"] = gradient.new_zeros(gradient.shape[1], gradient.shape[1])
            state["momentum"] = torch.zeros_like(weight)
        state["left"].lerp_(gradient @ gradient.T, 1 - decay)
        state["right"].lerp_(gradient.T @ gradient, 1 - decay)
        state["momentum"].lerp_(weight.grad, 1 - decay)
        left, right = (root(state[name], power) for name in ("left", "right"))
        update = left @ whole(state["momentum"]).float() @ right
        local(weight).sub_(part_of(update, weight).to(weight.dtype), alpha=lr)


def root(factor, power):
    """factor^(−power)."""
    values, vectors = torch.linalg.eigh(factor)
    return (vectors * values.clamp(min=1e-8).pow(-power)) @ vectors.T


def build_toy(parameters, config):
    return with_adam(parameters, config, partial(Toy, **asdict(config.section)))


TOY = Definition(build_toy, reads=frozenset({"adam_lr"}), section=ToyConfig)
