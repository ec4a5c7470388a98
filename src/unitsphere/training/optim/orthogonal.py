"""The nearest matrix with orthogonal rows (or columns), approximately: Newton–Schulz, Zolotarev.

Newton–Schulz: X ← aX + (bA + cA²)X with A = XXᵀ, on singular values the polynomial ax + bx³ + cx⁵;
the k-th step takes the k-th (a, b, c), and steps beyond the list its last.

| coefficients | singular values end | source |
|---|---|---|
| quintic | in about 0.7 … 1.2, any number of steps | Jordan 2024 |
| polar-express | as near to 1 as so many steps can for those from 1e-3 up | arXiv 2505.16932 |
| hyperp | near 1 in 5 steps | arXiv 2603.28743, its code |
| convergent | at 1 exactly, in many steps: 12 | modded-nanogpt, track 3 |

Zolotarev (`zolotarev`): M(I + Σⱼ aⱼ(A + cⱼI)⁻¹)X, on singular values the best odd rational function
of degree 2r+1 over 2r: no other is nearer to 1 on all of [ℓ, 1], ℓ = 0.003. `ns_steps` is r, its
number of terms (Nakatsukasa and Freund 2016, doi:10.1137/140990334):

| terms | singular values from 0.003 up end in | smaller ones grow by at most |
|---|---|---|
| 1 | 1 ± 0.480 | 179 |
| 2 | 1 ± 0.129 | 359 |
| 3 | 1 ± 0.033 | 509 |
| 4 | 1 ± 0.008 | 655 |
| 5 | 1 ± 0.002 | 800 |

A term costs the inverse of a matrix as small as the shorter side, by Cholesky, whatever the longer
one is; a step of Newton–Schulz costs three products.

Newton–Schulz runs in bf16 on a GPU, as torch's Muon does. On a CPU, and Zolotarev everywhere, it is
the weight's own precision, fp32 at least: bf16 products without bf16 instructions are over 30 times
slower (28 ms against 0.8 for a matrix of 128×128, AMD EPYC with AVX2), and figures are the same on
every CPU.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local, on_mesh_of, part_like, whole

COEFFICIENTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "quintic": ((3.4445, -4.7750, 2.0315),),
    "polar-express": (
        *(
            (a / 1.01, b / 1.01**3, c / 1.01**5)  # the paper's margin for rounding
            for a, b, c in (
                (8.28721201814563, -23.595886519098837, 17.300387312530933),
                (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
                (3.3184196573706015, -2.488488024314874, 0.51004894012372),
                (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
                (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
                (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
            )
        ),
        (1.875, -1.25, 0.375),
    ),
    "hyperp": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "convergent": ((2.0, -1.5, 0.5),),
}
"""Name -> (a, b, c) of each step."""
ZOLOTAREV: dict[int, tuple[float, tuple[tuple[float, float], ...]]] = {
    1: (1.43188246347, ((0.033298510608, 0.000268123398912),)),
    2: (0.912314782566, ((0.0133623221282, 3.56363224901e-05), (0.22713414108, 0.0127264036243))),
    3: (
        0.654218245903,
        (
            (0.0094590776622, 1.3368238531e-05),
            (0.0657109801815, 0.00106933013819),
            (0.537817438792, 0.0677167338706),
        ),
    ),
    4: (
        0.508965202085,
        (
            (0.00802195061074, 7.08780887303e-06),
            (0.033298510608, 0.000268123398912),
            (0.164254377335, 0.00669104481827),
            (0.914621445934, 0.17758578724),
        ),
    ),
    5: (
        0.416432857353,
        (
            (0.0073301139579, 4.43258311797e-06),
            (0.0217723276954, 0.000109495588575),
            (0.0791917907127, 0.00155639854506),
            (0.296976707926, 0.021574153017),
            (1.35022610899, 0.340098551043),
        ),
    ),
}
"""Terms r -> M and each (a, c), for [0.003, 1]."""
NO_LENGTH = 1e-7
"""Updates no longer than this count as that long."""


@dataclass(frozen=True)
class OrthogonalConfig:
    """How an update is made orthogonal, and its momentum."""

    coefficients: Literal["quintic", "polar-express", "hyperp", "convergent", "zolotarev"] = (
        "quintic"
    )
    """of Newton–Schulz; quintic: Jordan's; polar-express, hyperp: another polynomial each step,
    singular values nearer to 1 in as many steps; convergent: 1 exactly, with optim.ns_steps 12.
    zolotarev: a rational function of optim.ns_steps terms, 1 to 5, in its place: for a CPU, where
    2 terms bring singular values nearer to 1 than 5 steps, in 0.3 to 0.9 of the time"""
    momentum_start: float = 0.85
    """momentum at the first step, if momentum_warmup is not 0"""
    momentum_warmup: int = 0
    """steps in which the momentum goes from momentum_start to optim.momentum in equal amounts"""
    momentum_end: float = 0.85
    """momentum at the last step, if momentum_cooldown is not 0"""
    momentum_cooldown: int = 0
    """last steps of the run, in which the momentum goes to momentum_end in equal amounts"""
    batched: bool = False
    """matrices of one shape in one batched call; with weights spread over processes one by one. On
    a CPU faster for small ones only: 2 times for 64×64, but 0.9 for 128×128 and 0.8 for 256×256"""

    def __post_init__(self) -> None:
        check_momentum(self)


def check_momentum(config: Any) -> None:
    """Raise UserError for momenta over a run that cannot be."""
    for key in ("momentum_start", "momentum_end"):
        if not 0 <= getattr(config, key) < 1:
            raise UserError(f"{key} must be from 0 to below 1: {getattr(config, key)}")
    for key in ("momentum_warmup", "momentum_cooldown"):
        if getattr(config, key) < 0:
            raise UserError(f"{key} must not be negative: {getattr(config, key)}")


def check_terms(coefficients: str, terms: int) -> None:
    """Raise UserError for a number of terms that Zolotarev's function is not tabulated for."""
    if coefficients == "zolotarev" and terms not in ZOLOTAREV:
        raise UserError(f"zolotarev has 1 to {max(ZOLOTAREV)} terms: optim.ns_steps is {terms}")


def orthogonalise(update: Tensor, steps: int, coefficients: str = "quintic") -> Tensor:
    """O ≈ (U Uᵀ)^(−½) U of U [m, n]: the same directions, singular values about 1.

    Of a stack [E, m, n] that of each matrix.
    """
    if update.dim() == 3:
        return part_like(orthogonalise_stack(local(update), steps, coefficients), update)
    if coefficients == "zolotarev":
        return by_inverses(update, steps)
    x = update.to(precision(update))
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=NO_LENGTH)
    for a, b, c in each_step(coefficients, steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def by_inverses(update: Tensor, terms: int) -> Tensor:
    """O by Zolotarev's function of U over √‖UUᵀ‖_F, which no singular value exceeds."""
    x = update.to(torch.promote_types(update.dtype, torch.float32))
    tall = x.size(0) > x.size(1)
    gram = whole(x.T @ x if tall else x @ x.T)
    largest = gram.norm().clamp(min=NO_LENGTH**2)
    gram = gram / largest
    scale, parts = ZOLOTAREV[terms]
    factor, shift = torch.eye(len(gram), dtype=gram.dtype, device=gram.device), 0.0
    for a, c in parts:
        gram.diagonal().add_(c - shift)
        shift, root = c, torch.linalg.cholesky_ex(gram, upper=True).L  # faster than lower
        factor.add_(torch.cholesky_inverse(root, upper=True), alpha=a)
    factor = on_mesh_of(x, factor.mul_(scale * largest.rsqrt()))
    return x @ factor if tall else factor @ x


def orthogonalise_many(
    updates: list[Tensor], steps: int, coefficients: str = "quintic"
) -> list[Tensor]:
    """`orthogonalise` of ordinary tensors of one shape in one batched call."""
    return list(orthogonalise_stack(torch.stack(updates), steps, coefficients).unbind())


def orthogonalise_stack(update: Tensor, steps: int, coefficients: str) -> Tensor:
    """`orthogonalise` of each matrix of [E, m, n], in batched products; Zolotarev one by one."""
    if coefficients == "zolotarev":
        return torch.stack([by_inverses(one, steps) for one in update]) if len(update) else update
    x = update.to(precision(update))
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    x = x / x.flatten(1).norm(dim=1).clamp(min=NO_LENGTH)[:, None, None]
    for a, b, c in each_step(coefficients, steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def precision(update: Tensor) -> torch.dtype:
    """What the products are computed in."""
    if update.device.type == "cuda":
        return torch.bfloat16
    return torch.promote_types(update.dtype, torch.float32)


def each_step(coefficients: str, steps: int) -> list[tuple[float, float, float]]:
    """(a, b, c) of each of `steps` steps."""
    known = COEFFICIENTS[coefficients]
    return [known[min(step, len(known) - 1)] for step in range(steps)]
