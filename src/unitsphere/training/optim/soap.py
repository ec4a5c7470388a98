"""SOAP: Adam in the eigenbases of a matrix's two covariances; SOAP-Muon orthogonalises its step.

For each layer's matrix W [m, n] with gradient G (Vyas et al. 2024, arXiv 2409.11321, algorithm 3):

| step | formula |
|---|---|
| first gradient | L = (1−β_f)·GGᵀ, R = (1−β_f)·GᵀG; Q_L, Q_R: their eigenvectors. W stays |
| momentum | M ← β₁M + (1−β₁)G |
| second moment, in the bases | V ← β₂V + (1−β₂)(Q_LᵀGQ_R)² |
| direction | N = Q_L [ Q_LᵀM̂Q_R / (√V̂ + ε) ] Q_Rᵀ, with M̂ = M/(1−β₁ᵗ), V̂ = V/(1−β₂ᵗ) |
| soap | W ← W − lr·λ·W − lr·N |
| soap-muon | W ← W − lr·λ·W∘c − lr·r·O, where O ≈ (NNᵀ)^(−½)N as in muon.py, r by `adjust_lr` |
| cautious decay | c = 1 where O∘W > 0, else 0; without it c = 1 |
| soap-muon, `outward` ρ < 1 | O ← O − (1−ρ)·min(a, 0)·W, with a = ⟨O, W⟩/⟨W, W⟩, before `floor` |
| … after the step, before decay | W ← W·R/‖W‖, with R = ‖W₀‖ − lr·r·⟨O, W₀⟩/‖W₀‖ of W₀ before it |
| soap-muon, `floor` f | rows of O ← row·max(1, f·‖row of W‖/‖row of r·O‖) |
| soap-muon, `momentum_*` | β₁ at step t = 0 (the first gradient), 1, …: as μ in muon.py |
| covariances | L ← β_f·L + (1−β_f)GGᵀ, R ← β_f·R + (1−β_f)GᵀG |
| every `every` steps | sort the columns of Q by diag(QᵀLQ), V with them; Q ← QR(LQ).Q; so for R |

The first gradient moves nothing, as in the authors' code: in its own bases it is diagonal, and Adam
would divide rounding by rounding. A side longer than `max_side` has no covariance and Q = I.

Soap-muon is record 46 of modded-nanogpt's track 3 without its look-ahead; its averages of weights
are `optim.average`. R is the length after the radial part of the step, so that a step along the
tangent does not lengthen W. O does not depend on the length of N, so M̂ may be divided by
1 − β₁ᵗ with the β₁ of this step, whatever those before it were.

Under FSDP2 and tensor parallel each process gathers a matrix's gradient, M and V, and computes the
same step, of which it takes its part. Every process holds L, R, Q_L and Q_R, in fp32 at least.
"""

import math
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local, part_of, whole
from unitsphere.training.optim.adam import with_adam
from unitsphere.training.optim.base import ByWeight
from unitsphere.training.optim.config import OptimConfig
from unitsphere.training.optim.muon import check_floor, lengthening, shape_rate, warm_momentum
from unitsphere.training.optim.orthogonal import check_momentum, check_steps, orthogonalise
from unitsphere.training.optim.registry import Definition, Parameters
from unitsphere.training.optim.state import COUNT, Slot, StateSpec, like

SHORTEST = 1e-8
"""No step of `outward` makes a matrix shorter than this."""


@dataclass(frozen=True)
class SoapConfig:
    """SOAP on the layers' matrices; its authors' numbers."""

    beta1: float = 0.95
    """decay of the momentum"""
    beta2: float = 0.95
    """decay of the second moment"""
    factor_beta: float = 0.95
    """decay of the covariances of rows and columns"""
    eps: float = 1e-8
    """added to the root of the second moment"""
    every: int = 10
    """steps from one refresh of the eigenbases to the next"""
    max_side: int = 10_000
    """longer sides of a matrix have no covariance"""

    def __post_init__(self) -> None:
        section = "soap_muon" if isinstance(self, SoapMuonConfig) else "soap"
        for key in ("beta1", "beta2", "factor_beta"):
            if not 0 <= getattr(self, key) < 1:
                raise UserError(
                    f"optim.{section}.{key} must be from 0 to below 1: {getattr(self, key)}"
                )
        if not 0 <= self.eps < math.inf:
            raise UserError(f"optim.{section}.eps must be a number from 0 on: {self.eps}")
        for key in ("every", "max_side"):
            if getattr(self, key) < 1:
                raise UserError(f"optim.{section}.{key} must be 1 or more: {getattr(self, key)}")


@dataclass(frozen=True)
class SoapMuonConfig(SoapConfig):
    """SOAP-Muon on the layers' matrices."""

    beta2: float = 0.9
    """decay of the second moment"""
    factor_beta: float = 0.9
    """decay of the covariances of rows and columns"""
    every: int = 1
    """steps from one refresh of the eigenbases to the next"""
    cautious: bool = True
    """decay only the entries that the update makes smaller"""
    floor: float = 0.0
    """least ‖u‖/‖w‖ of a row u of an update, which the rate multiplies, and that row w of its
    matrix: a shorter one is made that long. With optim.adjust_lr original modded-nanogpt has
    0.3825. 0: none"""
    outward: float = 1.0
    """part that is kept of an update's component along its matrix where that lengthens the matrix;
    below 1, steps along the tangent do not lengthen it either. modded-nanogpt has 0.5"""
    momentum_start: float = 0.85
    """beta1 at the first step, if momentum_warmup is not 0"""
    momentum_warmup: int = 0
    """steps in which beta1 goes from momentum_start to its value in equal amounts"""
    momentum_end: float = 0.85
    """beta1 at the last step, if momentum_cooldown is not 0"""
    momentum_cooldown: int = 0
    """last steps of the run, in which beta1 goes to momentum_end in equal amounts"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self)
        check_floor(self.floor)
        if not 0 <= self.outward <= 1:
            raise UserError(f"optim.soap_muon.outward must be from 0 to 1: {self.outward}")


class Soap(ByWeight):
    """SOAP over matrices: the table above. UserError for a number that cannot be."""

    section: ClassVar[type[SoapConfig]] = SoapConfig

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        factor_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        every: int = 10,
        max_side: int = 10_000,
        **more: Any,
    ) -> None:
        own = {"factor_beta": factor_beta, "eps": eps, "every": every, "max_side": max_side} | more
        self.section(betas[0], betas[1], **own)  # refuses what cannot be, and what it lacks
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay} | own)

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise UserError for what is not a matrix of real numbers, or a number that cannot be."""
        super().check_group(group)
        known = {field.name for field in fields(self.section)} & {*group}
        self.section(*group["betas"], **{key: group[key] for key in known})
        for weight in group["params"]:
            if weight.dim() != 2:
                raise UserError(
                    f"SOAP trains matrices of two axes, not {tuple(weight.shape)}: "
                    "choose another optim.name"
                )

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The count of steps, both moments; the covariance and the eigenbasis of each side."""
        spec = {"step": COUNT, "exp_avg": like(parameter), "exp_avg_sq": like(parameter)}
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        for side, n in sides(parameter, self.group_of(parameter)).items():
            spec |= dict.fromkeys((side, f"{side}_basis"), Slot((n, n), dtype))
        return spec

    def move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of one matrix."""
        state = self.state[weight]
        G = whole(grad).to(torch.promote_types(weight.dtype, torch.float32))
        if "step" not in state:
            self._begin(weight, G, group)
            return
        state["step"] += 1
        t, beta2 = int(state["step"]), group["betas"][1]
        beta1 = self.momentum(group, t)
        state["exp_avg"].lerp_(grad, 1 - beta1)
        M = whole(state["exp_avg"]).to(G.dtype) / (1 - beta1**t)
        V = whole(state["exp_avg_sq"]).to(G.dtype)
        V = V.lerp(into(G, state).square(), 1 - beta2)
        denominator = (V / (1 - beta2**t)).sqrt() + group["eps"]
        self.move_along(weight, out_of(into(M, state) / denominator, state), group)
        for side in sides(weight, group):
            state[side].lerp_(covariance(side, G), 1 - group["factor_beta"])
            if t % group["every"] == 0:
                V = refresh(side, state, V)
        local(state["exp_avg_sq"]).copy_(part_of(V, weight))

    def momentum(self, group: dict[str, Any], step: int) -> float:
        """β₁ of step number `step`."""
        return group["betas"][0]

    def move_along(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        """Move the weight: `direction` is the whole N."""
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        local(weight).sub_(part_of(direction, weight).to(weight.dtype), alpha=group["lr"])

    def _begin(self, weight: Tensor, G: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(weight)
        state["exp_avg_sq"] = torch.zeros_like(weight)
        for side in sides(weight, group):
            state[side] = (1 - group["factor_beta"]) * covariance(side, G)
            # eigh raises for NaN or infinity; the guard decides what happens with such a step.
            finite = state[side].nan_to_num(0.0, 0.0, 0.0)
            vectors = torch.linalg.eigh(finite).eigenvectors
            state[f"{side}_basis"] = vectors.flip(1).contiguous()  # as a checkpoint stores it


class SoapMuon(Soap):
    """SOAP's direction, orthogonalised.

    `numbers` are those of `Soap` and of `SoapMuonConfig`, whose values those have that are left
    out.
    """

    section = SoapMuonConfig

    def __init__(
        self, params: Any, ns_steps: int = 5, adjust_lr: str = "match_rms_adamw", **numbers: Any
    ) -> None:
        shape_rate(adjust_lr, torch.Size((1, 1)))  # refuses another word
        check_steps("quintic", ns_steps)
        plain: dict[str, Any] = asdict(SoapMuonConfig())
        plain["betas"] = plain.pop("beta1"), plain.pop("beta2")
        super().__init__(params, **(plain | numbers))
        for group in self.param_groups:
            group.setdefault("ns_steps", ns_steps)
            group.setdefault("adjust_lr", adjust_lr)
        self.defaults |= {"ns_steps": ns_steps, "adjust_lr": adjust_lr}

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise UserError for what `Soap` cannot take, or another word for `adjust_lr`."""
        super().check_group(group)
        shape_rate(group.get("adjust_lr"), torch.Size((1, 1)))

    def momentum(self, group: dict[str, Any], step: int) -> float:
        """β₁ of step number `step`, of which some may be a warm-up."""
        plain = group.get("momentum", group["betas"][0])
        return warm_momentum(plain, group, step) if group.get("momentum_warmup") else plain

    def move_along(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        """Move the weight: `direction` is the whole N."""
        lr, rate = group["lr"], shape_rate(group["adjust_lr"], weight.shape)
        outward = group.get("outward", 1.0)
        update = orthogonalise(direction, group["ns_steps"])
        W = whole(weight).to(update.dtype) if outward < 1 else None
        if W is not None:
            update = damped(update, W, outward)
        if floor := group.get("floor"):
            update = update * lengthening(weight, update, floor / rate, (-1,))
        step = part_of(update, weight).to(weight.dtype)
        held = local(weight)
        kept = step * held > 0 if group["cautious"] else 1.0
        if W is None:
            held.sub_(held * kept, alpha=lr * group["weight_decay"])
            held.sub_(step, alpha=lr * rate)
        else:
            scale = straight(W, lr * rate * update)
            held.sub_(step, alpha=lr * rate).mul_(scale)
            held.sub_(held * kept, alpha=lr * group["weight_decay"])


def damped(update: Tensor, W: Tensor, kept: float) -> Tensor:
    """The update, with `kept` of its part along W where subtracting that part lengthens W."""
    along = (update * W).sum() / W.square().sum().clamp(min=torch.finfo(W.dtype).tiny)
    return update - (1 - kept) * along.clamp(max=0) * W


def straight(W: Tensor, step: Tensor) -> Tensor:
    """What gives W − step the length ‖W‖ − ⟨step, W⟩/‖W‖; 1 if W is zeros, as at some starts."""
    length = W.norm()
    wanted = (length - (step * W).sum() / length).clamp(min=SHORTEST)
    return torch.where(length > 0, wanted / (W - step).norm(), 1.0)


def sides(weight: Tensor, group: dict[str, Any]) -> dict[str, int]:
    """The sides of a matrix that have a covariance, and their lengths."""
    lengths = zip(("left", "right"), weight.shape, strict=True)
    return {side: n for side, n in lengths if n <= group["max_side"]}


def covariance(side: str, G: Tensor) -> Tensor:
    """GGᵀ or GᵀG."""
    return G @ G.T if side == "left" else G.T @ G


def into(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Q_Lᵀ x Q_R."""
    x = state["left_basis"].T @ x if "left_basis" in state else x
    return x @ state["right_basis"] if "right_basis" in state else x


def out_of(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Q_L x Q_Rᵀ."""
    x = state["left_basis"] @ x if "left_basis" in state else x
    return x @ state["right_basis"].T if "right_basis" in state else x


def refresh(side: str, state: dict[str, Tensor], V: Tensor) -> Tensor:
    """One step of power iteration on the side's eigenbasis; V with its rows or columns sorted."""
    Q = state[f"{side}_basis"]
    powered = state[side] @ Q
    order = (Q * powered).sum(0).argsort(descending=True, stable=True)
    state[f"{side}_basis"] = torch.linalg.qr(powered[:, order]).Q.contiguous()
    return V.index_select(0 if side == "left" else 1, order)


def build_soap(parameters: Parameters, config: OptimConfig) -> Optimizer:
    """SOAP or SOAP-Muon over the layers' matrices; AdamW over the rest."""
    numbers = asdict(config.section) | {"weight_decay": config.weight_decay}
    numbers["betas"] = numbers.pop("beta1"), numbers.pop("beta2")
    if config.name == "soap":
        return with_adam(parameters, config, partial(Soap, **numbers))
    numbers |= {"ns_steps": config.ns_steps, "adjust_lr": config.adjust_lr}
    return with_adam(parameters, config, partial(SoapMuon, **numbers))


READS = frozenset({"weight_decay", "adam_lr"})
SOAP = Definition(build_soap, reads=READS, section=SoapConfig)
SOAP_MUON = Definition(build_soap, reads=READS | {"ns_steps", "adjust_lr"}, section=SoapMuonConfig)
