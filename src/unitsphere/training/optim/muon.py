"""Muon for matrices and Adam for the rest, as one optimizer; the head's gradient by frequency.

| step | formula | source |
|---|---|---|
| momentum | B ← μB + (1−μ)G; U = (1−μ)G + μB with Nesterov, else B | `torch.optim.Muon` |
| orthogonalise | O ≈ (U Uᵀ)^(−½) U by `ns_steps` Newton–Schulz steps | Jordan 2024 |
| update | W ← W − lr·wd·W − lr·r·O | |
| "original" | r = √max(1, out/in) | Jordan 2024 |
| "match_rms_adamw" | r = 0.2·√max(out, in): entries move as under AdamW | arXiv 2502.16982 |
| p_v, with `optim.head_by_frequency` | (1 − ε)·(token v's share of the targets) + ε/V, ε = 0.02 | |
| gradient of the head's row v | G_v ← G_v/√(V·p_v): at most 1/√ε = 7 times | |

Newton–Schulz runs in bf16 on a GPU, as torch's does. On a CPU it runs in the weight's own
precision, fp32 at least: bf16 products without bf16 instructions are over 30 times slower (28 ms
against 0.8 for a matrix of 128×128, AMD EPYC with AVX2), and figures are the same on every CPU.

`head_by_frequency` is this project's (docs/results/best-search.md). The gradient of a row of the
head comes from the targets that are its token, so it is longer for common ones. Adam evens that out
entry by entry. Muon makes all directions of the matrix equally long, and those are of common
tokens' rows unless the rows are evened out before. p belongs to the training text, like its
tokenizer: it is counted in the first batches, as many of them whatever the length of the run, so a
short run counts more than it trains on. Rare tokens of a large vocabulary are counted roughly. The
logged `grad_norm`, and clipping, are of the gradient before. A step with a closure, whose gradients
come too late, is not served.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unitsphere.data.batch import IGNORED
from unitsphere.data.batches import ByStep
from unitsphere.models.constraint import Role, roles
from unitsphere.ops.dtensor import local, part_of
from unitsphere.training.optim.adam import build_adam, grouped, split_roles
from unitsphere.training.optim.config import OptimConfig
from unitsphere.training.optim.registry import Definition, Parameters
from unitsphere.training.optim.state import Combined, StateSpec, StepHook, attach, like

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← aX + (bA + cA²)X with A = XXᵀ (Jordan 2024)."""
NO_LENGTH = 1e-7
"""Updates no longer than this count as that long."""
COUNTED = 2**20
"""Training tokens whose targets are counted, at least."""
COUNTED_BY_V = 256
"""At least this many for each token of the vocabulary."""
UNIFORM = 0.02
"""ε: the part of p that all tokens share."""


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

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The momentum."""
        return {"momentum_buffer": like(parameter)}

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


def build_muon(parameters: Parameters, config: OptimConfig) -> Optimizer:
    """Muon over the layers' matrices, and over the head if asked for; AdamW over the rest."""
    of_muon: tuple[Role, ...] = ("matrix", "head") if config.muon_head else ("matrix",)
    matrices, rest = split_roles(parameters, of_muon)
    adam = build_adam(rest, config)
    if not matrices:
        return adam
    muon = Muon(
        grouped(matrices, lambda role: {"lr": config.lr * config.rates.of(role)}),
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        ns_steps=config.ns_steps,
        adjust_lr_fn=config.adjust_lr,
    )
    return Combined(muon, adam)


MUON = Definition(build_muon, reads=frozenset({"weight_decay", "adam_lr", "muon_head"}))


class ByFrequency(StepHook):
    """Multiplies each row of a head's gradient by that row's factor, [V]."""

    def __init__(self, head: Tensor, factors: Tensor) -> None:
        whole = factors.to(head.device, head.dtype)[:, None].expand(head.shape)
        self.head, self.factors = head, part_of(whole, head)

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """G_v ← G_v/√(V·p_v)."""
        if self.head.grad is not None:
            local(self.head.grad).mul_(self.factors)


def row_factors(batches: ByStep, batch_tokens: int, V: int) -> Tensor:
    """1/√(V·p_v) of each token v, [V]: the same in every process and whenever a run starts."""
    counts = torch.zeros(V, dtype=torch.int64)
    for step in range(math.ceil(max(COUNTED, COUNTED_BY_V * V) / batch_tokens)):
        targets = batches.batch(step).targets
        counts += torch.bincount(targets[targets != IGNORED], minlength=V)
    share = counts / counts.sum().clamp(min=1)
    return ((1 - UNIFORM) * V * share + UNIFORM).rsqrt()


def weigh_head(model: nn.Module, optimizer: Optimizer, batches: ByStep, batch_tokens: int) -> None:
    """Give the optimizer the head's gradient by frequency from now on.

    Before `constrain`: what that takes out of gradients, it takes out of these.
    """
    (name,) = [name for name, role in roles(model).items() if role == "head"]
    head = model.get_parameter(name)
    attach(optimizer, ByFrequency(head, row_factors(batches, batch_tokens, head.shape[0])))
