"""Adam and its kin: torch's Adam and AdamW, fused where torch has it; AdamH; GatedAdamW.

Weight decay is never on gains unless `optim.roles` says so.

GatedAdamW is AdamW whose steps are smaller where the second moment is small. For each layer's
matrix W with gradient G ("Training nGPT", arXiv 2608.01284):

| step | formula |
|---|---|
| moments | m ← β₁m + (1−β₁)G; v ← β₂v + (1−β₂)G²; m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ) |
| size | d = √v̂ + ε |
| gate | γ = σ(a·ln(d/ε_g)) = 1/(1 + (ε_g/d)ᵃ) |
| update | W ← W − lr·λ·W − lr·α·γ·m̂/d |

So γ/d = 1/(d + ε_gᵃ·d^(1−a)): with a = 1 it is AdamW whose ε is ε_g, with a = 0 AdamW at half the
rate. Between them a step shrinks slowly where d is below ε_g, in proportion to (d/ε_g)ᵃ.

Cautious decay (arXiv 2510.12402), with AdamW's step s = m̂/d without decay:

    W ← W − lr·s − lr·λ·W⊙[s⊙W > 0]
"""

import math
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, fields
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam as TorchAdam
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.models.constraint import Role
from unitsphere.ops.dtensor import by_mesh
from unitsphere.training.optim.base import ByWeight, Combined, Eager, check_real
from unitsphere.training.optim.config import OptimConfig
from unitsphere.training.optim.registry import Definition, Parameters, definition
from unitsphere.training.optim.state import COUNT, StateSpec, like

adam_step = torch.no_grad()(unwrap(TorchAdam.step))
"""Adam's step, without the compiler (see `Eager`) and without the hooks around it."""


class Adam(Eager, TorchAdam):
    """torch's Adam, which declares its state."""

    step = adam_step

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The count of steps and both moments."""
        return {"step": COUNT, "exp_avg": like(parameter, 1), "exp_avg_sq": like(parameter, 2)}


class AdamW(TorchAdamW, Adam):
    """torch's AdamW, which declares its state."""


class CautiousAdamW(AdamW):
    """AdamW whose weight decay is only on those entries that its step makes smaller too."""

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise UserError for complex parameters."""
        check_real(self, group["params"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """torch's step without decay, then the decay of the weights before it."""
        decays = [group["weight_decay"] for group in self.param_groups]
        before = [
            [weight.detach().clone() for weight in group["params"]] if decay else []
            for group, decay in zip(self.param_groups, decays, strict=True)
        ]
        for group in self.param_groups:
            group["weight_decay"] = 0.0
        try:
            loss = adam_step(self, closure)  # super's may run the hooks a second time
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
        for group, held in zip(self.param_groups, before, strict=True):
            for weight, old in zip(group["params"] if held else [], held, strict=True):
                kept = old * ((old - weight.detach()) * old > 0)
                weight.detach().sub_(kept, alpha=group["lr"] * group["weight_decay"])
        return loss


@dataclass(frozen=True)
class AdamWConfig:
    """AdamW's own keys."""

    cautious: bool = False
    """weight decay only on those entries that the step makes smaller too"""


def build_adam(parameters: Parameters, config: OptimConfig) -> Adam:
    """A group for each set of numbers and mesh; AdamW unless `optim.name` is adam or adamh.

    Fused it is 3 to 5 times faster on a CPU.
    """
    kind = AdamW if definition(config.name).decoupled else Adam
    if isinstance(config.section, AdamWConfig) and config.section.cautious:
        kind = CautiousAdamW
    return kind(
        grouped(parameters, config.adam_group),
        fused=all(p.device.type in ("cpu", "cuda") for p in parameters),
    )


def grouped(
    parameters: Parameters, settings: Callable[[Role], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Groups of the parameters that have the same settings by role and are on the same mesh."""
    alike: dict[tuple[Any, ...], list[Parameter]] = {}
    for parameter, role in parameters.items():
        alike.setdefault(tuple(settings(role).items()), []).append(parameter)
    return [
        {"params": held, **dict(numbers)}
        for numbers, members in alike.items()
        for held in by_mesh(members)
    ]


def with_adam(
    parameters: Parameters,
    config: OptimConfig,
    build: Callable[[list[dict[str, Any]]], Optimizer],
    wanted: Container[Role] = ("matrix",),
) -> Optimizer:
    """What `build` makes of the groups of the wanted roles, with Adam over the rest, as one."""
    chosen: Parameters = {p: role for p, role in parameters.items() if role in wanted}
    others: Parameters = {p: role for p, role in parameters.items() if p not in chosen}
    if not chosen:
        return build_adam(others, config)
    built = build(grouped(chosen, config.group))
    return Combined(built, build_adam(others, config)) if others else built


@dataclass(frozen=True)
class GatedConfig:
    """GatedAdamW on the layers' matrices, with optim.beta1 and beta2."""

    power: float = 0.5
    """a: how fast the gate closes; 1: AdamW whose eps is eps_gate"""
    eps_gate: float = 1e-4
    """second moment's root at which the gate is half open; try 0.1 to 1 times its median"""
    scale: float = 1.0
    """α: multiplies the gated step, not weight decay"""
    eps: float = 1e-12
    """added to the root of the second moment"""

    def __post_init__(self) -> None:
        for key in ("eps_gate", "scale", "eps"):
            if not 0 < getattr(self, key) < math.inf:
                raise UserError(
                    f"optim.gated_adamw.{key} must be a number above 0: {getattr(self, key)}"
                )
        if not 0 <= self.power <= 1:
            raise UserError(f"optim.gated_adamw.power must be from 0 to 1: {self.power}")


class GatedAdamW(ByWeight):
    """The table above, for parameters of any shape. UserError for a number that cannot be."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-12,
        weight_decay: float = 0.0,
        power: float = 0.5,
        eps_gate: float = 1e-4,
        scale: float = 1.0,
    ) -> None:
        own = {"power": power, "eps_gate": eps_gate, "scale": scale, "eps": eps}
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay} | own)

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise UserError for complex parameters or a number that cannot be."""
        super().check_group(group)
        GatedConfig(**{field.name: group[field.name] for field in fields(GatedConfig)})
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise UserError(f"betas must be from 0 to below 1: {group['betas']}")

    state_spec = Adam.state_spec

    def move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of one tensor."""
        state, lr, a = self.state[weight], group["lr"], group["power"]
        if "step" not in state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        t, (beta1, beta2) = int(state["step"]), group["betas"]
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        d = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt() + group["eps"]
        divisor = d + group["eps_gate"] ** a * d ** (1 - a)
        weight.mul_(1 - lr * group["weight_decay"])
        weight.addcdiv_(state["exp_avg"], divisor, value=-lr * group["scale"] / (1 - beta1**t))


def build_gated(parameters: Parameters, config: OptimConfig) -> Optimizer:
    """GatedAdamW over the layers' matrices; AdamW over the rest."""
    build = partial(
        GatedAdamW,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        **asdict(config.section),
    )
    return with_adam(parameters, config, build)


ADAM = Definition(build_adam, decoupled=False)
ADAMW = Definition(build_adam, reads=frozenset({"weight_decay"}), section=AdamWConfig)
ADAMH = Definition(build_adam, constraint="hyperball", decoupled=False)
"""Adam whose matrices and head are on `hyperball` (projection.py)."""
GATED = Definition(build_gated, reads=frozenset({"weight_decay", "adam_lr"}), section=GatedConfig)
