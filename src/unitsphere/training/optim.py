"""Optimizers from declared roles: Muon on matrices alone, weight decay never on gains."""

import math
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer

from unitsphere.errors import UserError
from unitsphere.models.classifier import Classifier
from unitsphere.models.constraint import MATRICES, Role, roles
from unitsphere.models.trunk import Transformer
from unitsphere.training.constraint import ConstraintConfig
from unitsphere.training.distributed.gradients import by_mesh
from unitsphere.training.muon import Muon, MuonAdam


@dataclass(frozen=True)
class RatesConfig:
    """Peak rates of what is no matrix of a layer, as multiples: of optim.adam_lr, or else lr.

    With Muon on the head, of lr."""

    embedding: float = 1.0
    """of the input embedding, tied to the head or not"""
    head: float = 1.0
    """of the output head"""
    scale: float = 1.0
    """of scaling parameters, gains and biases"""

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise UserError(f"optim.rates.{key} must be a number above 0: {value}")

    def of(self, role: Role) -> float:
        """The multiple for a parameter of `role`."""
        match role:
            case "matrix":
                return 1.0
            case "embedding":
                return self.embedding
            case "head":
                return self.head
            case _:
                return self.scale


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer's numbers."""

    name: Literal["adam", "adamw", "muon"] = "adam"
    """adam; adamw: with decoupled weight decay; muon: Muon on the layers' matrices, adamw on
    embeddings, head, gains, scales and biases"""
    lr: float = 1e-3
    """peak learning rate"""
    adam_lr: float | None = None
    """muon: peak rate of what adamw trains; none: lr, which fits adjust_lr match_rms_adamw"""
    rates: RatesConfig = RatesConfig()
    """peak rates by kind of parameter"""
    muon_head: bool = False
    """muon: train the output head by Muon too, unless it is tied to the embedding"""
    head_by_frequency: bool = False
    """muon_head: divide the gradient of the head's row of token v by √(V·p_v), p_v about v's share
    of the training targets, so that rare tokens are learned as common ones are"""
    beta1: float = 0.9
    """decay of the first moment"""
    beta2: float = 0.95
    """decay of the second moment"""
    eps: float = 1e-8
    """added to the root of the second moment"""
    weight_decay: float = 0.0
    """decoupled, on matrices and embeddings (adamw, muon)"""
    momentum: float = 0.95
    """muon: decay of the momentum"""
    nesterov: bool = True
    """muon: look ahead by the momentum"""
    ns_steps: int = 5
    """muon: Newton–Schulz steps"""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """muon: rate by shape; match_rms_adamw: an entry moves as far as under adamw, so that lr is an
    adamw rate (arXiv 2502.16982); original: √max(1, out/in)"""
    clip: float = 1.0
    """largest norm of the whole gradient; 0: unclipped"""
    constraint: ConstraintConfig = field(default_factory=ConstraintConfig)
    """what is kept of the weights after every step"""

    def __post_init__(self) -> None:
        positive = {"lr": self.lr, "adam_lr": self.adam_lr, "ns_steps": self.ns_steps}
        for key, value in positive.items():
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"optim.{key} must be a number above 0: {value}")
        for key in ("eps", "weight_decay", "clip"):
            if not 0 <= getattr(self, key) < math.inf:
                raise UserError(f"optim.{key} must be a number from 0 on: {getattr(self, key)}")
        for key in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, key) < 1:
                raise UserError(f"optim.{key} must be from 0 to below 1: {getattr(self, key)}")
        if self.name == "adam" and self.weight_decay:
            raise UserError(
                "optim.weight_decay needs optim.name 'adamw' or 'muon': adam would add it to g"
            )
        if self.name != "muon" and self.muon_head:
            raise UserError(f"optim.muon_head is for optim.name 'muon', not '{self.name}'")
        if self.head_by_frequency and not self.muon_head:
            raise UserError(
                "optim.head_by_frequency is for a head trained by Muon (optim.muon_head): Adam "
                "evens out the rows by itself"
            )
        if self.name != "muon" and self.adam_lr is not None:
            raise UserError(f"optim.adam_lr is for optim.name 'muon': with '{self.name}' set lr")
        if self.weight_decay and self.constraint.kind in ("hyperball", "cpr"):
            raise UserError(
                f"optim.constraint.kind '{self.constraint.kind}' takes the place of weight decay: "
                "set optim.weight_decay 0"
            )

    def roles_of_muon(self) -> tuple[Role, ...]:
        """The roles of the parameters that Muon trains: none, unless it is the optimizer."""
        if self.name != "muon":
            return ()
        return ("matrix", "head") if self.muon_head else ("matrix",)


def build_optimizer(model: Transformer | Classifier, config: OptimConfig) -> Optimizer:
    """The optimizer over the model's parameters, in groups by their declared roles.

    Each group has its peak rate as "initial_lr" beside "lr". Adam is fused where torch has it: on
    CPU 3 to 5 times faster than the loop. The constraint is `training.constraint.constrain`'s work.
    """
    role, parameters = roles(model), dict(model.named_parameters())
    kinds: dict[Parameter, Role] = {p: role[name] for name, p in parameters.items()}
    matrices, rest = split_roles(kinds, config.roles_of_muon())
    adam = build_adam(model, config, rest)
    optimizer: Optimizer = adam
    if matrices:
        optimizer = MuonAdam(build_muon(config, matrices), adam)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def split_roles(
    kinds: Mapping[Parameter, Role], wanted: Container[Role]
) -> tuple[dict[Parameter, Role], dict[Parameter, Role]]:
    """The parameters of the roles that are wanted, and the others."""
    parts: tuple[dict[Parameter, Role], dict[Parameter, Role]] = ({}, {})
    for parameter, role in kinds.items():
        parts[0 if role in wanted else 1][parameter] = role
    return parts


def build_adam(
    model: Transformer | Classifier, config: OptimConfig, rest: Mapping[Parameter, Role]
) -> Adam:
    """Adam, or AdamW unless the config says "adam", over parameters of the roles given.

    A group for each rate, weight decay and mesh.
    """
    alike: dict[tuple[float, float], list[Parameter]] = {}
    peak = config.lr if config.adam_lr is None else config.adam_lr
    for parameter, role in rest.items():
        decay = config.weight_decay if role in MATRICES else 0.0
        alike.setdefault((peak * config.rates.of(role), decay), []).append(parameter)
    groups = [
        {"params": held, "lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in alike.items()
        for held in by_mesh(parameters)
    ]
    kind = Adam if config.name == "adam" else AdamW
    return kind(
        groups,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=model.device.type in ("cpu", "cuda"),
    )


def build_muon(config: OptimConfig, matrices: Mapping[Parameter, Role]) -> Muon:
    """Muon over matrices of the roles given: a group for each rate."""
    groups: dict[float, list[Parameter]] = {}
    for matrix, role in matrices.items():
        groups.setdefault(config.lr * config.rates.of(role), []).append(matrix)
    return Muon(
        [{"params": held, "lr": lr} for lr, held in groups.items()],
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        ns_steps=config.ns_steps,
        adjust_lr_fn=config.adjust_lr,
    )
