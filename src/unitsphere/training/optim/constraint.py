"""The constraint belongs to the optimizer: it holds after every step, in anyone's loop.

What is done around a step is in projection.py, and in cpr.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unitsphere.config import check_choices
from unitsphere.errors import UserError
from unitsphere.models.constraint import MATRICES, Constraint, Role, constraints, overridden, roles
from unitsphere.ops.dtensor import Axes
from unitsphere.ops.project import length
from unitsphere.training.optim.cpr import CPR, CPRConfig
from unitsphere.training.optim.projection import (
    WHOLE,
    AngleCap,
    Frobenius,
    Hyperball,
    Projection,
    Tangent,
)
from unitsphere.training.optim.state import StepHook, attach, holds

REMEMBERED: dict[str, tuple[Role, ...]] = {
    "frobenius": MATRICES,
    "hyperball": ("matrix",),
    "cpr": ("matrix", "head"),
}
"""Constraints that keep something in the optimizer's state, and the roles that they act on: all
that a sphere acts on (its control); Muon's matrices; linear layers, as CPR's authors do."""

FROBENIUS = ("frobenius", "hyperball")
"""Those that keep each matrix's norm."""

ConstraintKind = Literal["declared", "none", "sphere", "ball", "frobenius", "hyperball", "cpr"]


@dataclass(frozen=True)
class ConstraintConfig:
    """What is kept of the weights in training."""

    kind: ConstraintKind = "declared"
    """declared: what the architecture declares (nGPT sphere, anGPT ball, GPT and NormFormer
    nothing); none: nothing; sphere, ball: vectors of length 1, or at most 1, in every matrix, along
    the axis that is declared or else the in axis; frobenius: every matrix at its initial
    Frobenius norm; hyperball: the layers' matrices so, and their updates at lr times that (AdamH,
    MuonH); cpr: linear layers regularized by CPR"""
    riemannian: bool = False
    """before the optimizer, project the weights' gradients on the spheres' tangent spaces: this
    project's own, no paper's"""
    cpr: CPRConfig = field(default_factory=CPRConfig)
    """Constrained Parameter Regularization's bounds"""
    norm: Literal["start", "before"] = "start"
    """hyperball: a matrix keeps its norm at the start, or the one before each step"""
    head: bool = False
    """hyperball: the output head too, unless it is tied to the embedding"""
    angle_cap: float = 0.0
    """spheres: largest angle by which a step turns a vector of length d, as a multiple of lr·√d, 1
    or 2 for example; embeddings are left out; 0: any"""

    def __post_init__(self) -> None:
        check_choices(self, "optim.constraint.")
        if not 0 <= self.angle_cap < math.inf:
            raise UserError(f"angle_cap must be a number from 0 on: {self.angle_cap}")
        if self.angle_cap and self.kind not in ("declared", "sphere"):
            raise UserError(
                f"angle_cap needs vectors on spheres, and constraint '{self.kind}' has none: "
                "take declared or sphere"
            )
        if self.riemannian and self.kind in ("none", "ball", "cpr"):
            raise UserError(
                f"riemannian needs weights on spheres, and constraint '{self.kind}' has none: "
                "take declared, sphere, frobenius or hyperball"
            )


def constrain(
    model: nn.Module,
    *optimizers: Optimizer,
    config: ConstraintConfig = ConstraintConfig(),
    warmup: int = 0,
    now: bool = True,
) -> list[RemovableHandle]:
    """Keep the model's constraints through training with these optimizers.

    Projects once now, and after each step of an optimizer the tensors that it holds itself:
    normalising copies of them is the bug that nGPT A.6 warns of. Call it once, after building
    the optimizers and before the first step. The handles undo it (`handle.remove()`). With
    `now=False` it does not project now: for weights of a checkpoint, which are projected already
    and would change in their last bits.

    The model may be wrapped (compiled, DDP, Lightning's) and so may the optimizers (Accelerate's,
    Lightning's). It holds with gradient accumulation and with a GradScaler, skipped steps included;
    weights averaged outside the optimizer are for `unitsphere.project`, and so are those that a
    wrapper moves itself after its optimizer's step (Lookahead). It survives
    `load_state_dict`, and `copy.deepcopy((model, optimizer))` of both together. A pickled
    optimizer comes back without it: call `constrain` again, what it remembers is in the state.
    Frozen parameters may get an `add_param_group` later; under `frobenius`, `hyperball` and `cpr`
    call `constrain` again then.

    `config` puts another constraint in the place of the declared ones; `warmup` is the number
    of warm-up steps, for CPR's warm start.

    Raises TypeError for a model or an optimizer that is not torch's, ValueError if a parameter is
    declared neither constrained nor free, or if a trainable constrained one is in none of the
    optimizers (a copy of it may be), UserError for a config that does not fit the model, or Muon's
    `turns`.

    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    >>> unitsphere.constrain(model, optimizer)
    """
    optimizers = tuple(innermost(optimizer) for optimizer in optimizers)
    check_types(model, optimizers)
    check_turns(optimizers, config)
    bounds = {c.parameter: c for c in bounds_of(model, config.kind)}
    remembered = remembered_roles(config)
    capped = capped_axes(model, bounds) if config.angle_cap else {}
    names = list(bounds) or [n for n, role in roles(model).items() if role in remembered]
    if config.riemannian and not remembered and not spheres(bounds):
        raise UserError(
            f"{type(model).__name__} declares no sphere for riemannian gradients: "
            "take constraint 'sphere', 'frobenius' or 'hyperball'"
        )
    weights = {name: model.get_parameter(name) for name in names}
    check_held(weights, optimizers)
    if remembered:
        check_width(weights, config.kind)
    if config.kind in FROBENIUS:
        check_length(weights, config.kind)
    if now:
        for name, constraint in bounds.items():
            constraint.project_(weights[name])
    handles: list[RemovableHandle] = []
    # What is frozen now may get a group later, of any of the optimizers: all of them know it.
    later = {n for n in bounds if not any(holds(o, weights[n]) for o in optimizers)}
    for optimizer in optimizers:
        mine = {
            n: weight for n, weight in weights.items() if n in later or holds(optimizer, weight)
        }
        for hook in hooks_for(mine, bounds, config, warmup, capped):
            handles += attach(optimizer, hook)
    return handles


def remembered_roles(config: ConstraintConfig) -> tuple[Role, ...]:
    """The roles of what a constraint on whole matrices acts on; none for one on vectors."""
    found = REMEMBERED.get(config.kind, ())
    return (*found, "head") if config.kind == "hyperball" and config.head else found


def check_types(model: object, optimizers: Sequence[object]) -> None:
    """Raise TypeError unless they are torch's."""
    for given, kind in ((model, nn.Module), *((optimizer, Optimizer) for optimizer in optimizers)):
        if not isinstance(given, kind):
            raise TypeError(
                "constrain takes a model, then its optimizers one by one: "
                f"{type(given).__name__} is not a torch {kind.__name__}"
            )


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer that steps, of one that Accelerate or Lightning has wrapped."""
    inner = getattr(optimizer, "optimizer", None)
    return innermost(inner) if isinstance(inner, Optimizer) else optimizer


def bounds_of(model: nn.Module, kind: ConstraintKind) -> list[Constraint]:
    """The constraints on vectors that `kind` puts on a model; none for those on whole matrices."""
    if kind == "declared":
        return constraints(model)
    return overridden(model, kind) if kind in ("sphere", "ball") else []


def spheres(bounds: Mapping[str, Constraint]) -> dict[str, Axes]:
    """Parameter name -> axis, for those on spheres."""
    return {name: c.dim for name, c in bounds.items() if c.kind == "sphere"}


def capped_axes(model: nn.Module, bounds: Mapping[str, Constraint]) -> dict[str, Axes]:
    """Parameter name -> axis, for those whose steps `angle_cap` limits; UserError if none is."""
    role = roles(model)
    found = {name: dim for name, dim in spheres(bounds).items() if role[name] != "embedding"}
    if not found:
        raise UserError(
            f"{type(model).__name__} declares no sphere for angle_cap: take constraint 'sphere'"
        )
    return found


def hooks_for(
    weights: Mapping[str, Tensor],
    bounds: Mapping[str, Constraint],
    config: ConstraintConfig,
    warmup: int,
    capped: Mapping[str, Axes],
) -> list[StepHook]:
    """What one optimizer does around its steps for the `weights` it holds or may get."""
    tensors = list(weights.values())
    axes: dict[str, Axes] = dict.fromkeys(weights, WHOLE)
    if config.kind == "frobenius":
        hook = Frobenius(tensors)
    elif config.kind == "hyperball":
        hook = Hyperball(tensors, config.norm)
    elif config.kind == "cpr":
        hook = CPR(tensors, config.cpr, warmup)
    else:
        hook = Projection([(weight, bounds[name]) for name, weight in weights.items()])
        axes = spheres(bounds)
    found: list[StepHook] = [hook]
    if config.angle_cap:  # before the projection, which turns nothing
        held = [(w, capped[name]) for name, w in weights.items() if name in capped]
        found.insert(0, AngleCap(held, config.angle_cap))
    if config.riemannian:
        found.insert(0, Tangent([(w, axes[name]) for name, w in weights.items() if name in axes]))
    return found


def check_turns(optimizers: Sequence[Optimizer], config: ConstraintConfig) -> None:
    """Raise UserError for Muon's turns, each by several times a rate that limits the step."""
    if config.kind != "hyperball" and not config.angle_cap:
        return
    limit = "angle_cap" if config.angle_cap else "constraint 'hyperball'"
    for optimizer in optimizers:
        for turns in (group.get("turns", 1) for group in optimizer.param_groups):
            if turns > 1:
                raise UserError(
                    f"{limit} limits a step by the rate, and turns {turns} makes it {turns} times "
                    "that: leave one of them out"
                )


def check_held(weights: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError unless each of `weights` that is trained is held by an optimizer."""
    for name, weight in weights.items():
        if weight.requires_grad and not any(holds(o, weight) for o in optimizers):
            raise ValueError(
                f"no optimizer holds the constrained parameter '{name}' itself: "
                "build the optimizer from model.parameters(), then call constrain"
            )


def check_width(weights: Mapping[str, nn.Parameter], kind: ConstraintKind) -> None:
    """Raise UserError for weights in 16 bits: loading would round to that what is remembered."""
    for name, weight in weights.items():
        if torch.finfo(weight.dtype).bits < 32:
            raise UserError(
                f"constraint '{kind}' needs weights of 32 bits, and {name} is {weight.dtype}: "
                "take train.precision bf16 instead of bf16-storage"
            )


def check_length(weights: Mapping[str, nn.Parameter], kind: ConstraintKind) -> None:
    """Raise UserError for a matrix of zeros: at a constant norm it would stay that for ever."""
    for name, weight in weights.items():
        if not weight.is_meta and not length(weight.detach(), WHOLE).all():
            raise UserError(
                f"constraint '{kind}' keeps each matrix's norm, and {name} starts at zero, "
                "where it would stay: give it another start"
            )
