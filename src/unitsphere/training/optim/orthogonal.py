"""Newton–Schulz: the nearest matrix with orthogonal rows (or columns), by a few products.

X ← aX + (bA + cA²)X with A = XXᵀ, on singular values the polynomial ax + bx³ + cx⁵; the k-th step
takes the k-th (a, b, c), and steps beyond the list its last.

| coefficients | singular values end | source |
|---|---|---|
| quintic | in about 0.7 … 1.2, any number of steps | Jordan 2024 |
| polar-express | as near to 1 as so many steps can for those from 1e-3 up | arXiv 2505.16932 |
| hyperp | near 1 in 5 steps | arXiv 2603.28743, its code |
| convergent | at 1 exactly, in many steps: 12 | modded-nanogpt, track 3 |

On a GPU in bf16, as torch's Muon does. On a CPU in the weight's own precision, fp32 at least: bf16
products without bf16 instructions are over 30 times slower (28 ms against 0.8 for a matrix of
128×128, AMD EPYC with AVX2), and figures are the same on every CPU.
"""

import torch
from torch import Tensor

from unitsphere.ops.dtensor import local, part_like

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
NO_LENGTH = 1e-7
"""Updates no longer than this count as that long."""


def orthogonalise(update: Tensor, steps: int, coefficients: str = "quintic") -> Tensor:
    """O ≈ (U Uᵀ)^(−½) U of U [m, n]: the same directions, singular values about 1.

    Of a stack [E, m, n] that of each matrix.
    """
    if update.dim() == 3:
        return part_like(orthogonalise_stack(local(update), steps, coefficients), update)
    x = update.to(precision(update))
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=NO_LENGTH)
    for a, b, c in each_step(coefficients, steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def orthogonalise_many(
    updates: list[Tensor], steps: int, coefficients: str = "quintic"
) -> list[Tensor]:
    """`orthogonalise` of ordinary tensors of one shape in one batched call."""
    return list(orthogonalise_stack(torch.stack(updates), steps, coefficients).unbind())


def orthogonalise_stack(update: Tensor, steps: int, coefficients: str) -> Tensor:
    """`orthogonalise` of each matrix of [E, m, n], in batched products."""
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
