"""Residual rules of nGPT's block that are not the paper's eq. 10 and 11 (`model.residual`).

| residual | h ← | source |
|---|---|---|
| slerp | along the great circle from h to Norm(h_A) | nGPT eq. 6 |
| riemannian | a step in h's tangent space, put back onto the sphere | nGPT eq. 29, 30 (A.4) |
| lerp_nu | (h + α ⊙ (Norm(h_A) − h))·ν(α): a constant instead of the outer Norm | anGPT Figure 5 |
| add | Norm(h + α ⊙ h_A), without Norm(h_A) | this project |
| gated | as add, with h_A times 2σ(⟨w_A, h⟩), one number per token | this project |
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from unitsphere.models.context import Context
from unitsphere.models.parts import Scale, ScaleConfig
from unitsphere.ops.residual import add_norm, gate, lerp, riemannian, slerp

Residual = Literal["lerp", "slerp", "riemannian", "lerp_nu", "add", "gated"]

STEPS: dict[Residual, Callable[[Tensor, Tensor, Tensor | float], Tensor]] = {
    "slerp": slerp,
    "riemannian": riemannian,
    "lerp_nu": lerp,
    "add": add_norm,
    "gated": add_norm,
}


EXPORTED: dict[Residual, str] = {
    "lerp": "lerp_norm",
    "lerp_nu": "lerp_nu",
    "add": "add_norm",
    "gated": "add_norm",
}
"""The rules that an exported folder has, by the names that its modeling file gives them."""


def gate_vector(gated: bool, d: int) -> Scale | None:
    """w [d] of a sublayer's gate, from 0, so that the gate starts at 1; None without gates."""
    return Scale(ScaleConfig(init=0.0, scale=0.0), (d,), d) if gated else None


def forward(block: Any, h: Tensor, context: Context, across: Context | None) -> Tensor:
    """`ngpt.Block.forward` with the block's residual rule in the place of eq. 10 and 11."""
    step = STEPS[block.residual]
    h = step(h, gated(h, block.attention(h, context), block.w_A), block.alpha_A())
    if across is not None:
        h = step(h, gated(h, block.cross(h, across), block.w_X), block.alpha_X())
    return step(h, gated(h, block.mlp(h), block.w_M), block.alpha_M())


def gated(h: Tensor, x: Tensor, w: Scale | None) -> Tensor:
    """The output x of a sublayer that read h, times its gate if there is one."""
    return x if w is None else gate(h, x, torch.as_tensor(w()))
