"""What a model declares of its parameters: the role of each, and the constraint of each matrix.

A module that owns parameters answers `declare()` with a `Declaration` for each of them by
its local name. Optimizers form their groups by role, and `training.optim.constraint.constrain`
projects what is constrained; nothing is guessed from names or shapes.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.ops.project import PROJECTIONS, project_sphere_

Role = Literal["matrix", "embedding", "head", "router", "gain", "scale", "bias"]
MATRICES: tuple[Role, ...] = ("matrix", "embedding", "head", "router")
"""Roles of what has vectors to constrain; all else are gains, scales and biases."""
BoundKind = Literal["sphere", "ball"]


@dataclass(frozen=True)
class Bound:
    """Vectors along `dim` of a matrix have the length `radius` (sphere) or at most that (ball).

    With `in_forward` the forward pass uses them at length 1, wherever an optimizer leaves them.
    Raises UserError for a kind or a radius that cannot be.
    """

    dim: int
    kind: BoundKind = "sphere"
    radius: float = 1.0
    in_forward: bool = False

    def __post_init__(self) -> None:
        if self.kind not in PROJECTIONS:
            raise UserError(f"Bound takes kind 'sphere' or 'ball', not {self.kind!r}")
        if not 0 < self.radius < math.inf:
            raise UserError(f"Bound takes a radius above 0, not {self.radius}")


@dataclass(frozen=True)
class Declaration:
    """A parameter's role, and its bound; None says that it is free."""

    role: Role
    bound: Bound | None = None


@dataclass(frozen=True)
class Constraint:
    """A model's constraint by the parameter's full name: ‖w‖ along `dim` = or ≤ `radius`."""

    parameter: str
    dim: int
    kind: BoundKind = "sphere"
    radius: float = 1.0

    def project_(self, weight: Tensor) -> Tensor:
        """Move `weight` to the nearest point that satisfies the constraint, in place."""
        return PROJECTIONS[self.kind](weight, self.dim, self.radius)


class Declares(Protocol):
    """A module that declares the parameters it owns."""

    def declare(self) -> dict[str, Declaration]:
        """Local parameter name -> declaration."""
        ...


def declares(module: nn.Module) -> TypeGuard[Declares]:
    """Whether the module declares its parameters; an isinstance of a protocol takes far longer."""
    return hasattr(module, "declare")


def declarations(model: nn.Module) -> dict[str, Declaration]:
    """Full parameter name -> declaration, for every parameter of the model.

    Raises ValueError if a parameter is undeclared: it is never skipped in silence.
    """
    found: dict[str, Declaration] = {}
    shared: set[int] = set()
    for prefix, module in model.named_modules():
        declared = _declared(module)
        for local, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{local}" if prefix else local
            if id(parameter) in shared:
                continue
            if local not in declared:
                raise ValueError(
                    f"parameter '{name}' of {type(module).__name__} is declared neither "
                    "constrained nor free: give its module a declare() that names it"
                )
            shared.add(id(parameter))
            found[name] = declared[local]
    return found


def _declared(module: nn.Module) -> dict[str, Declaration]:
    return module.declare() if declares(module) else {}


def roles(model: nn.Module) -> dict[str, Role]:
    """Full parameter name -> role."""
    return {name: d.role for name, d in declarations(model).items()}


def constraints(model: nn.Module) -> list[Constraint]:
    """The constraints that the model declares, in the order of its parameters."""
    return [
        Constraint(name, d.bound.dim, d.bound.kind, d.bound.radius)
        for name, d in declarations(model).items()
        if d.bound
    ]


def overridden(model: nn.Module, kind: BoundKind) -> list[Constraint]:
    """Every matrix, embedding and head under `kind`, whatever the model declares of it.

    Along the axis that the model declares; where it declares none, along the in axis (the last), as
    anGPT does for all of its matrices (§4.2), with radius 1.
    """
    found = []
    for name, declared in declarations(model).items():
        if declared.role in MATRICES:
            in_axis = model.get_parameter(name).dim() - 1  # experts are stacks [E, out, in]
            bound = declared.bound or Bound(in_axis)
            found.append(Constraint(name, bound.dim, kind, bound.radius))
    return found


def normalize_(model: nn.Module) -> None:
    """Put every constrained vector at its radius, sphere and ball alike: how training starts."""
    parameters = dict(model.named_parameters())
    for c in constraints(model):
        project_sphere_(parameters[c.parameter], c.dim, c.radius)


@torch.no_grad()
def project_(model: nn.Module) -> None:
    """Move every constrained parameter to the nearest point that its constraint allows, in place.

    For weights that came to be outside of an optimizer that `unitsphere.constrain` knows. The
    average of unit vectors, for one, is shorter than 1: project averaged weights (EMA, SWA) before
    they are used. Averages of what is in a ball (anGPT) are in it already.
    """
    for c in constraints(model):
        c.project_(model.get_parameter(c.parameter))
