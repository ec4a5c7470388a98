"""Muon for matrices and Adam for the rest, as one optimizer.

| step | formula | source |
|---|---|---|
| momentum | B ← μB + (1−μ)G; U = (1−μ)G + μB with Nesterov, else B | `torch.optim.Muon` |
| orthogonalise | O ≈ (U Uᵀ)^(−½) U by `ns_steps` Newton–Schulz steps | Jordan 2024 |
| update | W ← W − lr·wd·W − lr·r·O | |
| "original" | r = √max(1, out/in) | Jordan 2024 |
| "match_rms_adamw" | r = 0.2·√max(out, in): entries move as under AdamW | arXiv 2502.16982 |

Newton–Schulz runs in bf16 on a GPU, as torch's does. On a CPU it runs in the weight's own
precision, fp32 at least: bf16 products without bf16 instructions are over 30 times slower (28 ms
against 0.8 for a matrix of 128×128, AMD EPYC with AVX2), and figures are the same on every CPU.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← aX + (bA + cA²)X with A = XXᵀ (Jordan 2024)."""
NO_LENGTH = 1e-7
"""Updates no longer than this count as that long."""


def orthogonalise(update: Tensor, steps: int) -> Tensor:
    """O ≈ (U Uᵀ)^(−½) U of U [m, n]: the same directions, singular values in about 0.7 … 1.2."""
    on_gpu = update.device.type == "cuda"
    x = update.to(torch.bfloat16 if on_gpu else torch.promote_types(update.dtype, torch.float32))
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=NO_LENGTH)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def shape_rate(kind: str, shape: torch.Size) -> float:
    """r: what the rate is multiplied with for a matrix [out, in]."""
    rows, columns = shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


class Muon(torch.optim.Muon):
    """torch's Muon, its groups and state, with `orthogonalise` in the place of torch's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step by the table above."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)
        return loss

    def _move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, momentum, lr = self.state[weight], group["momentum"], group["lr"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        held = state["momentum_buffer"]
        held.lerp_(grad, 1 - momentum)
        update = grad.lerp(held, momentum) if group["nesterov"] else held
        direction = orthogonalise(update, group["ns_steps"])
        weight.mul_(1 - lr * group["weight_decay"])
        weight.add_(direction, alpha=-lr * shape_rate(group["adjust_lr_fn"], weight.shape))


class MuonAdam(Optimizer):
    """Muon and Adam (AdamW) behind one `step`, one state and one list of groups.

    So hooks, schedules, checkpoints, `state_dict` and deep copies see a single optimizer. A group
    is Muon's if it has a "momentum", else Adam's.
    """

    def __init__(self, muon: Muon, adam: Adam) -> None:
        super().__init__([*muon.param_groups, *adam.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch with what was loaded or copied: both parts go on with that."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Make the two parts over this optimizer's own groups and state."""
        of_muon = [group for group in self.param_groups if "momentum" in group]
        of_adam = [group for group in self.param_groups if "momentum" not in group]
        self._parts = Muon(of_muon), Adam(of_adam)
        for part in self._parts:
            part.state = self.state
