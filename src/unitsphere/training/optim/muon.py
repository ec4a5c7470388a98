"""Muon and NorMuon for matrices with Adam for the rest.

| step | formula | source |
|---|---|---|
| momentum | B ← μB + (1−μ)G; U = (1−μ)G + μB with Nesterov, else B | `torch.optim.Muon` |
| momentum_warmup n | μ_t = μ₀ + (μ − μ₀)·min(t/n, 1), t = 0, 1, … | modded-nanogpt |
| momentum_cooldown n | μ_t = μ + (μ₁ − μ)·max(1 − (T − 1 − t)/n, 0), T steps | modded-nanogpt |
| orthogonalise | O ≈ (U Uᵀ)^(−½) U by `ns_steps` steps or terms of orthogonal.py | Jordan 2024 |
| update | W ← W − lr·wd·W − lr·r·O | |
| `floor` f | O ← O·max(1, f·‖W‖_F/‖r·O‖_F) (a step ≥ lr·f of W) | modded-nanogpt |
| "cautious" | W ← W − lr·wd·W⊙[O⊙W > 0] − lr·r·O | nanochat |
| "original" | r = √max(1, out/in) | Jordan 2024 |
| "match_rms_adamw" | r = 0.2·√max(out, in): entries move as under AdamW | arXiv 2502.16982 |
| `turns` n | matrix i moves at steps t with (t + i) mod n = 0, with n·lr for lr | this project |

NorMuon divides the orthogonal direction O by a second moment for each row:

| step | formula | source |
|---|---|---|
| second moment | v ← β₂v + (1−β₂)·(mean of O² over the shorter side) | arXiv 2510.05491 |
| divide | O' = O/√v, row by row, or column by column of a wide W; v at least 1e-10 | |
| norm | O' ← O'·‖O‖_F/‖O'‖_F | modded-nanogpt |

v starts at 0 without Adam's correction, which the last line would cancel. Every process keeps all
of v: it is as long as the longer side.

`muonh` is Muon whose matrices are on `hyperball` (projection.py), and its head too, by Adam there.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.config import from_dict
from unitsphere.errors import UserError
from unitsphere.models.constraint import Role
from unitsphere.ops.dtensor import complete, local, part_like, part_of, placements, whole
from unitsphere.training.optim.adam import with_adam
from unitsphere.training.optim.base import Eager, check_real, closure_loss
from unitsphere.training.optim.config import OptimConfig
from unitsphere.training.optim.orthogonal import (
    COEFFICIENTS,
    NO_LENGTH,
    OrthogonalConfig,
    check_steps,
    orthogonalise,
    per_call,
)
from unitsphere.training.optim.registry import Definition, Parameters
from unitsphere.training.optim.state import COUNT, Slot, StateSpec, like

TORCH_DEFAULTS = COEFFICIENTS["quintic"][0], NO_LENGTH
"""torch's defaults of numbers that only its own Newton–Schulz reads."""
LEAST = 1e-10
"""NorMuon: second moments below this count as this."""


@dataclass(frozen=True)
class MuonConfig(OrthogonalConfig):
    """Muon's own keys."""

    turns: int = 1
    """n: the matrices take turns, each moves every n-th step by n times the rate. Gradients enter
    the momentum at every step. With 2 it saves nearly half of the optimizer's time on a CPU"""
    cautious: bool = False
    """weight decay only on those entries that the update makes smaller too"""
    floor: float = 0.0
    """least ‖U‖/‖W‖ of an update U, which the rate multiplies, and its matrix W, both Frobenius
    norms: a smaller update is made that long. With optim.adjust_lr original modded-nanogpt has
    0.35, without weight decay. 0: none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floor(self.floor)
        if self.turns < 1:
            raise UserError(f"turns must be at least 1: {self.turns}")


def check_floor(floor: float) -> None:
    """Raise UserError for a least ratio of update and weight that cannot be."""
    if not 0 <= floor < math.inf:
        raise UserError(f"floor must be a number from 0 on: {floor}")


@dataclass(frozen=True)
class NorMuonConfig(MuonConfig):
    """Muon's own keys and the second moment's."""

    beta2: float = 0.95
    """decay of the rows' second moment"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta2 < 1:
            raise UserError(f"optim.normuon.beta2 must be from 0 to below 1: {self.beta2}")


def shape_rate(kind: str | None, shape: torch.Size) -> float:
    """r: what the rate is multiplied with for a matrix [out, in], or a stack of them.

    None is original, as torch's Muon has it. UserError for another word: a group may have one.
    """
    rows, columns = shape[-2:]
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if kind not in ("original", None):
        raise UserError(f"a group's rate is adjusted by match_rms_adamw or original, not {kind!r}")
    return math.sqrt(max(1, rows / columns))


class Muon(Eager, torch.optim.Muon):
    """torch's Muon, its groups and state, with `orthogonalise` in the place of torch's.

    Takes torch's numbers but `ns_coefficients` and `eps`, and the keys of `MuonConfig`; UserError
    for one that cannot be. It also steps stacks of matrices [E, out, in], each matrix on its own.
    """

    section: ClassVar[type[MuonConfig]] = MuonConfig
    own: ClassVar[dict[str, Any]] = asdict(MuonConfig())

    def __init__(self, params: Any, **numbers: Any) -> None:
        own = {key: numbers.pop(key, value) for key, value in self.own.items()}
        super().__init__([torch.empty(1, 1)], **numbers)  # checks numbers; it refuses stacks
        Optimizer.__init__(self, params, self.defaults | own)

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise ValueError for a vector, UserError for complex parameters or Muon's own numbers."""
        for p in group["params"]:
            if p.dim() not in (2, 3):
                raise ValueError(f"Muon steps matrices and stacks of them, not {list(p.shape)}")
        check_real(self, group["params"])
        own = from_dict(self.section, {key: group[key] for key in self.own if key in group})
        check_steps(own.coefficients, group["ns_steps"])
        if (tuple(group["ns_coefficients"]), group["eps"]) != TORCH_DEFAULTS:
            raise UserError(
                "Muon reads `coefficients`, the name of its polynomials, in the place of torch's "
                "numbers: leave out ns_coefficients and eps"
            )
        shape_rate(group["adjust_lr_fn"], torch.Size((1, 1)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # of a state from before there were these keys
            for key, value in self.own.items():
                group.setdefault(key, value)

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The momentum, and the count of steps where something depends on it."""
        group = next(g for g in self.param_groups if any(p is parameter for p in g["params"]))
        count = {"step": COUNT} if counts(group) else {}
        return {"momentum_buffer": like(parameter), **count}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step by the table above."""
        loss = closure_loss(closure)
        for group in self.param_groups:
            numbers = group["ns_steps"], group["coefficients"]
            for members in self._together(group):
                found = {weight: self._update(weight, at, group) for at, weight in members}
                updates = {weight: u for weight, u in found.items() if u is not None}
                if len(updates) > 1:
                    stack = torch.stack([*updates.values()])
                    directions = orthogonalise(stack, *numbers).unbind()
                else:
                    directions = [orthogonalise(u, *numbers) for u in updates.values()]
                for weight, direction in zip(updates, directions, strict=True):
                    self._move(weight, self._direction(weight, direction, group), group)
        return loss

    def _together(self, group: dict[str, Any]) -> list[list[tuple[int, Tensor]]]:
        """The weights to step, with their places in the group, in lists that share one call."""
        alike: dict[Any, list[tuple[int, Tensor]]] = {}
        for index, weight in enumerate(group["params"]):
            if weight.grad is not None:
                whole_matrix = weight.dim() == 2 and not placements(weight)
                key = (weight.shape, weight.dtype, weight.device) if whole_matrix else index
                alike.setdefault(key, []).append((index, weight))
        calls = []
        for members in alike.values():
            most = per_call(members[0][1], group["batched"])
            calls += [members[n : n + most] for n in range(0, len(members), most)]
        return calls

    def _update(self, weight: Tensor, index: int, group: dict[str, Any]) -> Tensor | None:
        """U, of which the direction is taken; None if it is the turn of others."""
        grad, state, momentum, step = weight.grad, self.state[weight], group["momentum"], 0
        assert grad is not None  # `_together` leaves out those without
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        if counts(group):
            count = state.setdefault("step", torch.zeros(()))
            step = int(count)
            count += 1
        if group["momentum_warmup"]:
            momentum = warm_momentum(momentum, group, step)
        held = state["momentum_buffer"]
        held.lerp_(grad, 1 - momentum)
        if (step + index) % group["turns"]:
            return None
        return grad.lerp(held, momentum) if group["nesterov"] else held

    def _direction(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> Tensor:
        """What is made of O before the step; Muon takes it as it is."""
        return direction

    def _move(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        lr = group["lr"] * group["turns"]
        decay = lr * group["weight_decay"]
        rate = shape_rate(group["adjust_lr_fn"], weight.shape)
        if group["floor"]:
            factor = lengthening(weight, complete(direction), group["floor"] / rate, (-2, -1))
            direction = part_like(local(direction) * part_of(factor, direction), direction)
        if group["cautious"]:
            weight.sub_(weight * (direction * weight > 0), alpha=decay)
        elif decay:
            weight.mul_(1 - decay)
        weight.add_(direction, alpha=-lr * rate)


def counts(group: dict[str, Any]) -> bool:
    """Whether a step of the group depends on how many there were."""
    return bool(group["momentum_warmup"]) or group["turns"] > 1


def warm_momentum(momentum: float, group: dict[str, Any], step: float) -> float:
    """The momentum of step number `step`, 0, 1, …, of which some may be a warm-up."""
    progress = min(step / group["momentum_warmup"], 1.0)
    return group["momentum_start"] * (1 - progress) + momentum * progress


def lengthening(weight: Tensor, direction: Tensor, least: float, dims: tuple[int, ...]) -> Tensor:
    """max(1, least·‖W‖/‖O‖), shaped as the whole of O; norms are over `dims`.

    Plain tensors or DTensors whose terms are summed. It is finite, so zeros stay zeros.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    held, own = (whole(x.to(dtype).square().sum(dims, keepdim=True)) for x in (weight, direction))
    limits = torch.finfo(dtype)
    factor = least * (held / own.clamp(min=limits.tiny)).clamp(max=limits.max).sqrt()
    return factor.clamp(min=1).to(direction.dtype).expand(direction.shape)


class NorMuon(Muon):
    """Muon whose direction is divided by a second moment for each row."""

    section = NorMuonConfig
    own: ClassVar[dict[str, Any]] = asdict(NorMuonConfig())

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """Muon's, and the second moment."""
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        *stack, rows, columns = parameter.shape
        moment = Slot((*stack, max(rows, columns)), dtype)
        return super().state_spec(parameter) | {"second_moment": moment}

    def _direction(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> Tensor:
        direction, short = complete(direction), -1 if weight.shape[-2] >= weight.shape[-1] else -2
        wide = direction.to(torch.promote_types(weight.dtype, torch.float32))
        mean = whole(wide.square().sum(short)) / weight.shape[short]
        held = self.state[weight].setdefault("second_moment", torch.zeros_like(mean))
        held.lerp_(mean, 1 - group["beta2"])
        factors = held.clamp(min=LEAST).rsqrt()
        after = (mean * factors.square()).sum(-1, keepdim=True)
        factors *= (mean.sum(-1, keepdim=True) / after.clamp(min=LEAST)).sqrt()
        rows = factors.to(direction.dtype).unsqueeze(short).expand(direction.shape)
        local(direction).mul_(part_of(rows, direction))
        return direction


def cool_momentum(optimizer: Optimizer, left: int) -> None:
    """Set the momentum where it has a cool-down; `left`: steps of the run, the next one too.

    A run does that before each step. In another loop set the groups' `momentum`, as `lr`. That of
    SOAP-Muon is its β₁.
    """
    for group in optimizer.param_groups:
        if length := group.get("momentum_cooldown", 0):
            plain = group["momentum"] if "momentum" in group else group["betas"][0]
            peak = group.setdefault("initial_momentum", plain)
            share = max(1 - (left - 1) / length, 0.0)
            group["momentum"] = peak + (group["momentum_end"] - peak) * share


def build_muon(parameters: Parameters, config: OptimConfig, kind: type[Muon] = Muon) -> Optimizer:
    """Muon over the layers' matrices, and over the head if asked for; AdamW over the rest."""
    of_muon: tuple[Role, ...] = ("matrix", "head") if config.muon_head else ("matrix",)
    build = partial(
        kind,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        ns_steps=config.ns_steps,
        adjust_lr_fn=config.adjust_lr,
        **asdict(config.section),
    )
    return with_adam(parameters, config, build, of_muon)


READS = frozenset(
    {"weight_decay", "adam_lr", "muon_head", "momentum", "nesterov", "ns_steps", "adjust_lr"}
)
MUON = Definition(build_muon, READS, MuonConfig)
NORMUON = Definition(partial(build_muon, kind=NorMuon), READS, NorMuonConfig)
MUONH = Definition(build_muon, READS - {"weight_decay"}, OrthogonalConfig, "hyperball")
