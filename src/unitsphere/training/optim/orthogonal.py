"""The nearest matrix with orthogonal rows (or columns), approximately, by Newton–Schulz.

X ← aX + (bA + cA²)X with A = XXᵀ, on singular values the polynomial ax + bx³ + cx⁵; the k-th step
takes the k-th (a, b, c), and steps beyond the list its last. It starts with X = U/‖U‖_F.

| coefficients | singular values end | source |
|---|---|---|
| quintic | in about 0.7 … 1.2, any number of steps | Jordan 2024 |
| polar-express | as near to 1 as so many steps can for those from 1e-3 up | arXiv 2505.16932 |
| hyperp | near 1 in 5 steps | arXiv 2603.28743, its code |
| convergent | at 1 exactly, in many steps: 12 | modded-nanogpt, track 3 |
| minimax | nearest to 1 in 2, 3 or 4 steps (below) | the method of arXiv 2505.16932 |

`minimax` divides by √‖UUᵀ‖_F, which no singular value exceeds and which is shorter than ‖U‖_F, so
that fewer steps suffice. Each step is the best polynomial for where the one before ends:

| steps | singular values of U/√‖UUᵀ‖_F from | end in | smaller ones grow by at most |
|---|---|---|---|
| 2 | 0.03 | 1 ± 0.38 | 21 |
| 3 | 0.01 | 1 ± 0.27 | 78 |
| 4 | 0.005 | 1 ± 0.083 | 226 |

With minimax, and for sides from 1 : 1.5 on, all steps together are one factor: O = Q·X, where Q is
a polynomial of the first A. That takes two products with the longer side of X, whatever the number
of steps, and a few of the shorter side.

Newton–Schulz runs in bf16 on a GPU, as torch's Muon does, and there step by step, since rounded
squares of singular values would spoil the factor. On a CPU, and minimax everywhere, it is the
weight's own precision, fp32 at least: bf16 products without bf16 instructions are over 30 times
slower (28 ms against 0.8 for a matrix of 128×128, AMD EPYC with AVX2), and figures are the same on
every CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local, on_mesh_of, part_like, placements, whole

Polynomials = Sequence[tuple[float, float, float]]

COEFFICIENTS: dict[str, Polynomials] = {
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
MINIMAX: dict[int, Polynomials] = {
    2: ((7.3625, -20.7434, 15.1606), (2.9175, -2.1824, 0.4755)),
    3: ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)),
    4: (
        (8.2987, -24.4305, 18.0903),
        (3.9152, -2.9211, 0.5592),
        (3.1746, -2.3804, 0.4978),
        (2.1895, -1.5672, 0.4079),
    ),
}
"""Number of steps -> (a, b, c) of each."""
LONG = 1.5
"""From this ratio of a matrix's sides on, one small factor takes less time than step by step."""
NO_LENGTH = 1e-7
"""Updates no longer than this count as that long."""


@dataclass(frozen=True)
class OrthogonalConfig:
    """How an update is made orthogonal, and its momentum."""

    coefficients: Literal["quintic", "polar-express", "hyperp", "convergent", "minimax"] = "quintic"
    """of Newton–Schulz; quintic: Jordan's; polar-express, hyperp: another polynomial each step,
    singular values nearer to 1 in as many steps; convergent: 1 exactly, with optim.ns_steps 12;
    minimax: the same in optim.ns_steps 2, 3 or 4, for small matrices on a CPU"""
    momentum_start: float = 0.85
    """momentum at the first step, if momentum_warmup is not 0"""
    momentum_warmup: int = 0
    """steps in which the momentum goes from momentum_start to optim.momentum in equal amounts"""
    momentum_end: float = 0.85
    """momentum at the last step, if momentum_cooldown is not 0"""
    momentum_cooldown: int = 0
    """last steps of the run, in which the momentum goes to momentum_end in equal amounts"""
    batched: bool = False
    """matrices of one shape in one batched call on a CPU too, where that is faster below a width of
    128 only: docs/results/speed.md#the-step-of-each-optimizer. Weights spread over processes are
    stepped one by one, and experts a layer at a time"""

    def __post_init__(self) -> None:
        check_momentum(self)


STACK = 2**27
"""Most numbers in one batched call, 0.5 GiB in fp32, unless a single matrix has more."""


def per_call(matrix: Tensor, batched: bool) -> int:
    """How many matrices like this one share a call: 1 on a CPU, unless `batched`.

    On a GPU Python needs longer to start the products of one matrix than these take.
    """
    if matrix.device.type != "cuda" and not batched:
        return 1
    return max(1, STACK // max(matrix.numel(), 1))


def check_momentum(config: Any) -> None:
    """Raise UserError for momenta over a run that cannot be."""
    for key in ("momentum_start", "momentum_end"):
        if not 0 <= getattr(config, key) < 1:
            raise UserError(f"{key} must be from 0 to below 1: {getattr(config, key)}")
    for key in ("momentum_warmup", "momentum_cooldown"):
        if getattr(config, key) < 0:
            raise UserError(f"{key} must not be negative: {getattr(config, key)}")


def check_steps(coefficients: str, steps: int) -> None:
    """Raise UserError for no steps, or as many as minimax has no polynomials for."""
    if steps < 1:
        raise UserError(f"optim.ns_steps must be at least 1: {steps}")
    if coefficients == "minimax" and steps not in MINIMAX:
        raise UserError(f"minimax has 2 to {max(MINIMAX)} steps: optim.ns_steps is {steps}")


def orthogonalise(update: Tensor, steps: int, coefficients: str = "quintic") -> Tensor:
    """O ≈ (U Uᵀ)^(−½) U of U [m, n]: the same directions, singular values about 1.

    Of a stack [E, m, n] that of each matrix.
    """
    if update.dim() == 3 and placements(update):
        return part_like(orthogonalise(local(update), steps, coefficients), update)
    polynomials = each_step(coefficients, steps)
    x = update.to(precision(update, coefficients))
    short, long = sorted(x.shape[-2:])
    if coefficients == "minimax" or (x.dtype != torch.bfloat16 and long >= LONG * short):
        return by_factor(x, polynomials, tight=coefficients == "minimax")
    return by_steps(x, polynomials)


def by_steps(x: Tensor, polynomials: Polynomials) -> Tensor:
    """Each polynomial in turn of the matrix itself."""
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=NO_LENGTH)
    for a, b, c in polynomials:
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def by_factor(x: Tensor, polynomials: Polynomials, tight: bool) -> Tensor:
    """The same as a product of x and one factor, which is as small as x's shorter side.

    Only the first and the last of the products then have the longer side. `tight` takes
    √‖XXᵀ‖_F for the bound of the singular values instead of ‖X‖_F.
    """
    tall = x.size(-2) > x.size(-1)
    gram = whole(x.mT @ x if tall else x @ x.mT)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    bound = gram.flatten(-2).norm(dim=-1) if tight else diagonal.sum(-1)
    bound = bound.clamp(min=NO_LENGTH**2)[..., None, None]
    gram, factor = gram / bound, bound.rsqrt()
    for index, (a, b, c) in enumerate(polynomials):
        step = (gram @ gram).mul_(c).add_(gram, alpha=b)
        step.diagonal(dim1=-2, dim2=-1).add_(a)
        factor = step @ factor if index else step * factor
        if index + 1 < len(polynomials):
            gram = step @ gram @ step
    factor = on_mesh_of(x, factor)
    return x @ factor if tall else factor @ x


def precision(update: Tensor, coefficients: str) -> torch.dtype:
    """What the products are computed in."""
    if update.device.type == "cuda" and coefficients != "minimax":
        return torch.bfloat16
    return torch.promote_types(update.dtype, torch.float32)


def each_step(coefficients: str, steps: int) -> Polynomials:
    """(a, b, c) of each of `steps` steps."""
    if coefficients == "minimax":
        return MINIMAX[steps]
    known = COEFFICIENTS[coefficients]
    return [known[min(step, len(known) - 1)] for step in range(steps)]
