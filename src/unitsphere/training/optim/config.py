"""The settings of `optim.*`, and the optimizer that is built from them by its name."""

import dataclasses
import functools
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.models.constraint import MATRICES, Role, roles
from unitsphere.training.by_size import BaseConfig, Transfer
from unitsphere.training.optim.average import AverageConfig
from unitsphere.training.optim.constraint import REMEMBERED, ConstraintConfig, ConstraintKind
from unitsphere.training.optim.registry import OPTIMIZERS, definition, section_key
from unitsphere.training.optim.roles import OTHERS, RatesConfig, RolesConfig

if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(OPTIMIZERS)]


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer's numbers. `optim_config_type` adds the sections of single optimizers."""

    name: Name = "adam"
    """what trains the layers' matrices; adamw (with adam, adamh: adam) trains embeddings, head,
    gains, scales and biases. normuon: muon with a second moment for each row; muonh, adamh: muon
    and adam with optim.constraint.kind hyperball, the head on it too"""
    lr: float = 1e-3
    """peak learning rate"""
    adam_lr: float | None = None
    """peak rate of what adamw trains with another optimizer; none: lr, which fits adjust_lr
    match_rms_adamw"""
    rates: RatesConfig = RatesConfig()
    """peak rates by kind of parameter"""
    roles: RolesConfig = RolesConfig()
    """betas, eps, weight decay and cool-down by kind of parameter"""
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
    """decoupled, on matrices and embeddings (all but adam)"""
    momentum: float = 0.95
    """muon: decay of the momentum"""
    nesterov: bool = True
    """muon: look ahead by the momentum"""
    ns_steps: int = 5
    """muon, soap-muon: Newton–Schulz steps"""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """muon, soap-muon: rate by shape; match_rms_adamw: an entry moves as far as under adamw, so
    that lr is an adamw rate (arXiv 2502.16982); original: √max(1, out/in)"""
    logit_power: float | None = None
    """q of logit-gradient preconditioning, for logits z = s_z ⊙ u: the gradient of u is
    (s_z/mean s_z)^q times that of z, not s_z times (arXiv 2608.01284). With Adam and Muon 1 differs
    from none only by eps and clip; none: the plain gradient"""
    clip: float = 1.0
    """largest norm of the whole gradient; 0: unclipped"""
    constraint: ConstraintConfig = field(default_factory=ConstraintConfig)
    """what is kept of the weights after every step"""
    average: AverageConfig = field(default_factory=AverageConfig)
    """an average of the weights, kept with them"""
    transfer: Transfer = "none"
    """rates, weight decay, starts and branch factors of this size from those of optim.base, where
    the user gives none; nu: by νGPT's laws (arXiv 2604.27077); hyperp: by HyperP's (arXiv
    2603.28743), as its code has them; hyperp-paper: as its Table 1"""
    base: BaseConfig = BaseConfig()
    """the run whose rates were tuned"""

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
        if self.logit_power is not None and not 0 <= self.logit_power <= 2:
            raise UserError(f"optim.logit_power must be from 0 to 2: {self.logit_power}")
        self.check_keys()
        self.check_sections()
        self.check_roles()
        self.check_constraint()

    def check_constraint(self) -> None:
        """A `UserError` for a constraint that fits neither the optimizer nor the other keys."""
        kind, named = self.constrained.kind, self.brought
        if named and self.constraint.kind not in ("declared", named):
            raise UserError(
                f"optim.name '{self.name}' brings the constraint '{named}': "
                f"leave optim.constraint.kind at 'declared', not '{self.constraint.kind}'"
            )
        if self.weight_decay and kind in ("hyperball", "cpr"):
            raise UserError(
                f"optim.constraint.kind '{kind}' takes the place of weight decay: "
                "set optim.weight_decay 0"
            )
        if kind != "hyperball" and (self.constraint.norm != "start" or self.constraint.head):
            raise UserError(
                "optim.constraint.norm and optim.constraint.head are for "
                f"optim.constraint.kind 'hyperball', not '{kind}'"
            )
        turns = getattr(self.section, "turns", 1)
        if turns > 1 and (kind == "hyperball" or self.constraint.angle_cap):
            limit = "optim.constraint.angle_cap" if self.constraint.angle_cap else "'hyperball'"
            raise UserError(
                f"optim.{section_key(self.name)}.turns {turns} moves a matrix by {turns} times the "
                f"rate, and {limit} limits a step by the rate: leave one of them out"
            )

    def check_sections(self) -> None:
        """A `UserError` for a key that is set in the section of an optimizer that is not used."""
        for name in OPTIMIZERS:
            key = section_key(name)
            own = getattr(self, key, None)
            if own is None or name == self.name:
                continue
            plain = asdict(type(own)())
            changed = [field for field, value in asdict(own).items() if value != plain[field]]
            if changed:  # perhaps by a recipe, of which nothing can be left out
                defaults = ", ".join(f"optim.{key}.{field} {plain[field]}" for field in changed)
                raise UserError(
                    f"optim.{key}.{changed[0]} is for optim.name '{name}', not '{self.name}': "
                    f"leave it out, or set optim.name; what a recipe sets is undone by {defaults}"
                )

    def check_roles(self) -> None:
        """A `UserError` for a number in `roles` that this optimizer does not read."""
        if self.muon_head and (numbers := self.roles.head.adam):
            raise UserError(
                f"optim.roles.head.{next(iter(numbers))} is for a head trained by Adam, and "
                "optim.muon_head trains it by Muon: leave one of them out"
            )
        kind, held = self.constrained.kind, ["head"] if self.constrained.head else []
        if kind in ("hyperball", "cpr"):
            held += REMEMBERED[kind]
        for role in OTHERS:
            if not getattr(self.roles, role).weight_decay:
                continue
            if not definition(self.name).decoupled:
                raise UserError(
                    f"optim.roles.{role}.weight_decay is for optimizers with decoupled weight "
                    f"decay, not '{self.name}': leave it out, or take another optim.name"
                )
            if role in held:
                raise UserError(
                    f"optim.constraint.kind '{kind}' takes the place of weight decay: leave out "
                    f"optim.roles.{role}.weight_decay"
                )

    def group(self, role: Role) -> dict[str, Any]:
        """The settings of groups of `role`: peak rate, weight decay, perhaps cool-down."""
        own, decay = self.roles.of(role), self.weight_decay if role in MATRICES else 0.0
        numbers = {
            "lr": self.lr * self.rates.of(role),
            "weight_decay": decay if own.weight_decay is None else own.weight_decay,
        }
        return numbers if own.cooldown is None else numbers | {"cooldown": own.cooldown}

    def adam_group(self, role: Role) -> dict[str, Any]:
        """`group` of what Adam trains: `adam_lr` is its rate if there is one."""
        peak = self.lr if self.adam_lr is None else self.adam_lr
        plain = {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps}
        numbers = plain | self.roles.of(role).adam
        return self.group(role) | {
            "lr": peak * self.rates.of(role),
            "betas": (numbers["beta1"], numbers["beta2"]),
            "eps": numbers["eps"],
        }

    @property
    def momentum_cooldown(self) -> int:
        """The last steps of a run in which the momentum of its optimizer changes."""
        return getattr(self.section, "momentum_cooldown", 0)

    @property
    def section(self) -> Any:
        """The named optimizer's own keys, `optim.<name>.*`; None if it has none."""
        kind = definition(self.name).section
        return getattr(self, section_key(self.name), None) or (kind and kind())

    @property
    def constrained(self) -> ConstraintConfig:
        """The constraint to keep: `constraint`, or the one that belongs to the optimizer's name."""
        if self.brought is None:
            return self.constraint
        return dataclasses.replace(
            self.constraint, kind=cast(ConstraintKind, self.brought), head=True
        )

    @property
    def brought(self) -> str | None:
        """The kind of constraint that belongs to the optimizer's name, if one does."""
        return definition(self.name).constraint

    def check_keys(self) -> None:
        """A `UserError` for a key that is set and that the named optimizer does not read."""
        advice = {
            "weight_decay": f"{self.name} has no decoupled weight decay",
            "muon_head": "it trains no head by Muon",
            "adam_lr": f"with '{self.name}' set optim.lr",
        }
        for key, why in advice.items():
            if getattr(self, key) and key not in definition(self.name).reads:
                readers = [name for name in OPTIMIZERS if key in definition(name).reads]
                names = " or ".join(f"'{name}'" for name in readers)
                raise UserError(f"optim.{key} is for optim.name {names}, not '{self.name}': {why}")
        if self.head_by_frequency and not self.muon_head:
            raise UserError(
                "optim.head_by_frequency is for a head trained by Muon (optim.muon_head): Adam "
                "evens out the rows by itself"
            )

    def unread(self) -> list[str]:
        """A line for each number of Muon that is set and that the named optimizer does not read.

        No error: a run that was trained with one, to no effect, still loads.
        """
        reads, found = definition(self.name).reads, []
        for key in ("momentum", "nesterov", "ns_steps", "adjust_lr"):
            value = getattr(self, key)
            if value != getattr(OptimConfig, key) and key not in reads:
                names = " or ".join(name for name in OPTIMIZERS if key in definition(name).reads)
                wrong = f"is for optim.name {names}, not {self.name}: it is not used"
                found.append(f"optim.{key} {value} {wrong}")
        return found


def optim_config_type() -> type[OptimConfig]:
    """`OptimConfig` with a section for each registered optimizer that has keys of its own."""
    return _with_sections(tuple(OPTIMIZERS.items()))


@functools.cache
def _with_sections(registered: tuple[tuple[str, str], ...]) -> type[OptimConfig]:
    names = tuple(name for name, _ in registered)
    kinds = {section_key(name): definition(name).section for name in names}
    sections = [(key, kind, field(default_factory=kind)) for key, kind in kinds.items() if kind]
    if not sections and names == get_args(Name):
        return OptimConfig
    fields = [("name", Literal[names], field(default="adam")), *sections]
    made = dataclasses.make_dataclass("OptimConfig", fields, bases=(OptimConfig,), frozen=True)
    made.__doc__ = OptimConfig.__doc__
    return cast(type[OptimConfig], made)


def with_sections(config: OptimConfig) -> OptimConfig:
    """A plain `OptimConfig` as one that has all sections, with their defaults: as a file's is."""
    if type(config) is not OptimConfig:
        return config
    held = {key.name: getattr(config, key.name) for key in dataclasses.fields(config)}
    return optim_config_type()(**held)


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The optimizer over the model's parameters, in groups by their declared roles.

    Each group has its peak rate as "initial_lr" next to "lr". What constrains the weights is
    `constrain`'s work (constraint.py).
    """
    role = roles(model)
    parameters: dict[Parameter, Role] = {p: role[name] for name, p in model.named_parameters()}
    optimizer = definition(config.name).build(parameters, config)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer
