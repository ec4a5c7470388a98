"""Numbers by kind of parameter: matrices of layers, embedding, head, routers, and scales.

A model declares the role of each parameter (models/constraint.py). Scaling parameters, gains and
biases are one kind here. A layer's matrices have the plain keys of `optim.*`; `optim.rates` and
`optim.roles` say what the other kinds have in their place.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from torch import nn
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.models.constraint import Role, roles
from unitsphere.training.optim.base import Combined

Other = Literal["embedding", "head", "router", "scale"]
"""The kinds of parameters that are not matrices of layers."""
OTHERS: tuple[Other, ...] = get_args(Other)


def kind_of(role: Role) -> Literal["matrix", Other]:
    """The kind of parameter that a role is."""
    return role if role in ("matrix", "embedding", "head", "router") else "scale"


@dataclass(frozen=True)
class RatesConfig:
    """Peak rates of what is not a matrix of a layer, as multiples: of optim.adam_lr, or else lr.

    With Muon on the head, of lr."""

    embedding: float = 1.0
    """of the input embedding, tied to the head or not"""
    head: float = 1.0
    """of the output head"""
    router: float = 1.0
    """of the experts' routers"""
    scale: float = 1.0
    """of scaling parameters, gains and biases"""

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise UserError(f"optim.rates.{key} must be a number above 0: {value}")

    def of(self, role: Role) -> float:
        """The multiple for a parameter of `role`."""
        kind = kind_of(role)
        return 1.0 if kind == "matrix" else getattr(self, kind)


@dataclass(frozen=True)
class RoleConfig:
    """Numbers of one kind of parameter in the place of the optimizer's; none: the optimizer's."""

    beta1: float | None = None
    """decay of Adam's first moment; none: optim.beta1"""
    beta2: float | None = None
    """decay of Adam's second moment; none: optim.beta2"""
    eps: float | None = None
    """added to the root of Adam's second moment; none: optim.eps"""
    weight_decay: float | None = None
    """decoupled; none: optim.weight_decay, and 0 for scaling parameters, gains and biases"""
    cooldown: float | None = None
    """schedule.kind wsd: fraction of the run over which the rate falls; none: schedule.decay"""

    def check(self, table: str) -> None:
        """Raises UserError for a number that cannot be; `table` is where it stands."""
        for key, value in asdict(self).items():
            if value is None:
                continue
            if key in ("beta1", "beta2") and not 0 <= value < 1:
                raise UserError(f"{table}.{key} must be from 0 to below 1: {value}")
            if key in ("eps", "weight_decay") and not 0 <= value < math.inf:
                raise UserError(f"{table}.{key} must be a number from 0 on: {value}")
            if key == "cooldown" and not 0 < value <= 1:
                raise UserError(f"{table}.{key} must be above 0 and at most 1: {value}")

    @property
    def adam(self) -> dict[str, float]:
        """Those of Adam's own numbers that are set."""
        numbers = {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps}
        return {key: value for key, value in numbers.items() if value is not None}


@dataclass(frozen=True)
class RolesConfig:
    """Betas, eps, weight decay and cool-down by kind of parameter; matrices have the plain keys."""

    embedding: RoleConfig = RoleConfig()
    """of the input embedding, tied to the head or not"""
    head: RoleConfig = RoleConfig()
    """of the output head"""
    router: RoleConfig = RoleConfig()
    """of the experts' routers"""
    scale: RoleConfig = RoleConfig()
    """of scaling parameters, gains and biases"""

    def __post_init__(self) -> None:
        for key in OTHERS:
            getattr(self, key).check(f"optim.roles.{key}")

    def of(self, role: Role) -> RoleConfig:
        """The numbers for a parameter of `role`."""
        kind = kind_of(role)
        return RoleConfig() if kind == "matrix" else getattr(self, kind)

    @property
    def cooldowns(self) -> list[float]:
        """The cool-downs that differ from the schedule's, each once."""
        each = (getattr(self, key).cooldown for key in OTHERS)
        return sorted({share for share in each if share is not None})


def current_rates(model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """The learning rate that each kind of parameter has now."""
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    role = roles(model)
    return {kind_of(role[name]): rate[id(p)] for name, p in model.named_parameters()}


SHOWN = ("weight_decay", "betas", "eps", "momentum", "cooldown")
"""Numbers of a group that `trained` shows with its peak rate."""


def trained(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """How each kind of parameter is trained: a row for each kind and set of numbers.

    A row has the kind, its parameters, the optimizer's class, the peak rate, and of `SHOWN` what
    the optimizer has.
    """
    parts = optimizer.parts if isinstance(optimizer, Combined) else [optimizer]
    groups = {
        id(p): (type(part).__name__, group)
        for part in parts
        for group in part.param_groups
        for p in group["params"]
    }
    role = roles(model)
    found: dict[Any, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        kind, (by, group) = kind_of(role[name]), groups[id(parameter)]
        row = {"role": kind, "optimizer": by, "lr": group["initial_lr"]}
        unread = () if "betas" in group else ("eps",)  # torch's Muon has one, which is not used
        row |= {key: group[key] for key in SHOWN if key in group and key not in unread}
        counted = found.setdefault(tuple(row.items()), row | {"parameters": 0})
        counted["parameters"] += parameter.numel()
    return list(found.values())
