"""Optimizers, constraints, schedules and averages of weights for your own loop and any module.

    from unitsphere import optim

| name | what | source |
|---|---|---|
| `Adam`, `AdamW` | torch's | Kingma & Ba 2015; arXiv 1711.05101 |
| `CautiousAdamW` | AdamW that decays only what its step makes smaller too | arXiv 2510.12402 |
| `GatedAdamW` | AdamW with smaller steps where the second moment is small | arXiv 2608.01284 |
| `AdamH`, `MuonH` | matrices keep their Frobenius norm, lr is an angle | arXiv 2603.28743 |
| `Muon` | orthogonalised momentum, for matrices | Jordan 2024 |
| `NorMuon` | Muon with a second moment for each row | arXiv 2510.05491 |
| `Soap`, `SoapMuon` | Adam in the eigenbases of a matrix's covariances | arXiv 2409.11321 |
| `Combined` | several of them behind one `step`, state and list of groups | |
| `by_role(model)` | a model's parameters by what they are: matrix, embedding, head, … | |
| `build(model, name, …)` | the optimizer of `unitsphere train`, with its groups and constraint | |
| `constrain`, `project` | keep a model's constraints in every step; move it onto them now | |
| `ConstraintConfig` | another constraint, Riemannian gradients, a cap on a step's angle | |
| `Schedule`, `factor`, `area` | the rate's form over a run, its factors, their mean | |
| `scheduler` | the same as a scheduler of torch's | |
| `cool_momentum` | the end of Muon's momentum: call it before each step | |
| `average`, `averaged` | keep an average of the weights; use it, projected | |

Each is a `torch.optim.Optimizer`: groups, hooks, schedulers and `state_dict` work as usual. All but
`Adam` and those with `AdamW` in their name take matrices only, [out, in]: give the rest to `AdamW`,
and both to `Combined`. Rates are per step. A user's mistake is a `UserError`.
"""

from functools import partial
from typing import Any, get_args

from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from unitsphere.config import from_dict
from unitsphere.errors import UserError
from unitsphere.models.constraint import Role, roles
from unitsphere.models.constraint import project_ as project
from unitsphere.training.optim.adam import Adam, AdamW, CautiousAdamW, GatedAdamW
from unitsphere.training.optim.average import average, averaged
from unitsphere.training.optim.base import Combined
from unitsphere.training.optim.config import build_optimizer, optim_config_type
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.muon import Muon, NorMuon, cool_momentum
from unitsphere.training.optim.projection import Hyperball
from unitsphere.training.optim.roles import OTHERS, RoleConfig, kind_of
from unitsphere.training.optim.schedule import ScheduleConfig as Schedule
from unitsphere.training.optim.schedule import area, factor, with_decay
from unitsphere.training.optim.soap import Soap, SoapMuon
from unitsphere.training.optim.state import attach, attached

__all__ = [
    "Adam",
    "AdamH",
    "AdamW",
    "CautiousAdamW",
    "Combined",
    "ConstraintConfig",
    "GatedAdamW",
    "Muon",
    "MuonH",
    "NorMuon",
    "Schedule",
    "Soap",
    "SoapMuon",
    "area",
    "average",
    "averaged",
    "build",
    "by_role",
    "constrain",
    "cool_momentum",
    "factor",
    "project",
    "scheduler",
]


OF_THE_LOOP = {
    "clip": "call torch.nn.utils.clip_grad_norm_",
    "logit_power": "give it to the model's loss",
    "average": "call unitsphere.optim.average",
    "head_by_frequency": "it counts the training data of `unitsphere train`",
    "transfer": "it needs the sizes of a whole run: give the rates themselves",
    "base": "optim.transfer needs the sizes of a whole run: give the rates themselves",
}
"""Keys of `optim.*` that an optimizer by itself does not serve, and what to do."""


class KeepsNorms(Optimizer):
    """An optimizer whose later groups keep their matrices' norms as the first ones do."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; UserError, and no group, for what cannot keep its norm."""
        super().add_param_group(param_group)
        if not attached(self):  # while the optimizer is made: its `keep_norms` comes last
            return
        try:
            keep_norms(self, self.param_groups[-1:])
        except UserError:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch with what was loaded, copied or unpickled; a pickle has no hooks."""
        super().__setstate__(state)
        if not attached(self):
            keep_norms(self, self.param_groups)


class AdamH(KeepsNorms, Adam):
    """Adam on matrices that keep their Frobenius norm R: W ← R·N(W + lr·R·N(D)), N(X) = X/‖X‖_F.

    D is Adam's step, of which only the direction counts: `lr` is the step's length as a share of
    R. Takes torch's numbers, without weight decay. UserError for a matrix of zeros, which would
    stay one, and for what is not a matrix.
    """

    def __init__(self, params: Any, lr: float = 0.018, **numbers: Any) -> None:
        super().__init__(params, lr=lr, **numbers)
        keep_norms(self, self.param_groups)


class MuonH(KeepsNorms, Muon):
    """Muon on matrices that keep their Frobenius norm R: W ← R·N(W + lr·R·N(D)), N(X) = X/‖X‖_F.

    D is Muon's step, of which only the direction counts: `lr` is the step's length as a share of
    R. Takes torch's numbers and `coefficients`, `momentum_start`, `momentum_warmup`, `batched`.
    UserError for a matrix of zeros, which would stay one, and for what is not a matrix.
    """

    def __init__(self, params: Any, lr: float = 0.018, **numbers: Any) -> None:
        super().__init__(params, lr=lr, **({"weight_decay": 0.0} | numbers))
        keep_norms(self, self.param_groups)


def keep_norms(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Let every matrix in `groups` of the optimizer keep its Frobenius norm."""
    weights: list[Tensor] = []
    for group in groups:
        if group["weight_decay"]:
            raise UserError("a constant norm takes the place of weight_decay: set it to 0")
        if group.get("turns", 1) > 1:
            raise UserError("with a constant norm every step has the length lr: set turns to 1")
        weights += group["params"]
    for weight in weights:
        if weight.dim() != 2 or (not weight.is_meta and not weight.detach().any()):
            raise UserError(
                f"{type(optimizer).__name__} keeps the norm of matrices that are not zero, and one "
                f"of {list(weight.shape)} is not such: give it to AdamW, or another start"
            )
    attach(optimizer, Hyperball(weights))


def by_role(model: nn.Module) -> dict[Role, list[Parameter]]:
    """A model's parameters by role, in its order: matrix, embedding, head, router, gain, scale,
    bias.

    For models of `unitsphere.build`, and those whose modules declare their parameters. Roles that
    the model does not have are empty lists. ValueError for a parameter that is not declared.

    >>> of = optim.by_role(model)
    >>> matrices = optim.Muon(of.pop("matrix"), lr=0.02)
    >>> rest = optim.AdamW([p for held in of.values() for p in held], lr=3e-3)
    >>> optimizer = optim.Combined(matrices, rest)
    """
    found: dict[Role, list[Parameter]] = {role: [] for role in get_args(Role)}
    for name, role in roles(model).items():
        found[role].append(model.get_parameter(name))
    return found


def build(
    model: nn.Module, name: str = "adam", *, warmup: int = 0, now: bool = True, **settings: Any
) -> Optimizer:
    """The optimizer that `unitsphere train --optim.name NAME` makes, on its constraint.

    `settings` are the keys of `optim.*`, sections as dicts; `warmup` is the schedule's, for CPR.
    `now=False`: the weights are a checkpoint's, and are not projected again. Each group has its
    peak rate as "initial_lr". UserError for a name, key or value that cannot be, for the keys that
    are the loop's, and for numbers in `roles` of what the model does not have.

    >>> optim.build(model, "muon", lr=0.01, adam_lr=0.003, muon={"cautious": True})
    """
    for key in OF_THE_LOOP:
        if key in settings:
            raise UserError(f"optim.{key} is the training loop's work: {OF_THE_LOOP[key]}")
    config = from_dict(optim_config_type(), {"name": name, **settings}, "optim.")
    held = {kind_of(role) for role in roles(model).values()}
    for kind in OTHERS:
        if kind not in held and getattr(config.roles, kind) != RoleConfig():
            raise UserError(
                f"optim.roles.{kind} is for a model with such parameters, and this one has none (a "
                "tied head is an embedding): leave it out"
            )
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer, config=config.constrained, warmup=warmup, now=now)
    return optimizer


def scheduler(optimizer: Optimizer, schedule: Schedule, steps: int) -> LambdaLR:
    """A scheduler of torch's that follows `schedule` through a run of `steps` updates.

    Call its `step` after each of the optimizer's. Rates of the groups are the peaks; a group with a
    "cooldown" has that share of the run for its decay. UserError for fewer than one update, and for
    a cooldown under a schedule of another kind than wsd.
    """
    if steps < 1:
        raise UserError(f"steps, the updates of the run, must be at least 1: {steps}")
    cooldowns = [group.get("cooldown") for group in optimizer.param_groups]
    if schedule.kind != "wsd" and any(cooldowns):
        raise UserError(
            f"a group's cooldown is for a schedule of kind wsd, not {schedule.kind}: set that, "
            "with decay 1 for a linear schedule"
        )
    forms = [with_decay(schedule, share) for share in cooldowns]
    return LambdaLR(optimizer, [partial(_factor, form, steps) for form in forms])


def _factor(schedule: Schedule, steps: int, step: int) -> float:
    """The factor of update `step`; torch asks for one after the last."""
    return factor(schedule, min(step, steps - 1), steps)
