"""The head's gradient by how common each token is: `optim.head_by_frequency`.

| what | formula |
|---|---|
| p_v | (1 − ε)·(token v's share of the targets) + ε/V, ε = 0.02 |
| gradient of the head's row v | G_v ← G_v/√(V·p_v): at most 1/√ε = 7 times |

This is this project's (docs/results/best-search.md). The gradient of a row of the head comes from
the targets that are its token, so it is longer for common ones. Adam evens that out entry by entry.
Muon makes all directions of the matrix equally long, and those are of common tokens' rows unless
the rows are evened out before.

p belongs to the training text, like its tokenizer: it is counted in the first batches, as many of
them whatever the length of the run, so a short run counts more than it trains on. Rare tokens of a
large vocabulary are counted roughly. The logged `grad_norm`, and clipping, are of the gradient
before. A step with a closure, whose gradients come too late, is not served.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unitsphere.models.constraint import roles
from unitsphere.ops.dtensor import local, part_of
from unitsphere.ops.sharded_loss import IGNORE
from unitsphere.training.optim.state import StepHook, attach

if TYPE_CHECKING:  # unitsphere.optim does without the modules of the data
    from unitsphere.data.batches import ByStep

COUNTED = 2**20
"""Training tokens whose targets are counted, at least."""
COUNTED_BY_V = 256
"""At least this many for each token of the vocabulary."""
UNIFORM = 0.02
"""ε: the part of p that all tokens share."""


class ByFrequency(StepHook):
    """Multiplies each row of a head's gradient by that row's factor, [V]."""

    of_gradients = True

    def __init__(self, head: Tensor, factors: Tensor) -> None:
        rows = factors.to(head.device, head.dtype)[:, None].expand(head.shape)
        self.head, self.factors = head, part_of(rows, head)

    def before(self, optimizer: Optimizer, ready: bool) -> None:
        """G_v ← G_v/√(V·p_v)."""
        if self.head.grad is not None:
            local(self.head.grad).mul_(self.factors)


def row_factors(batches: "ByStep", batch_tokens: int, V: int) -> Tensor:
    """1/√(V·p_v) of each token v, [V].

    The same in every process and whenever a run starts or resumes: it depends on the data only.
    """
    counts = torch.zeros(V, dtype=torch.int64)
    for step in range(math.ceil(max(COUNTED, COUNTED_BY_V * V) / batch_tokens)):
        targets = batches.batch(step).targets
        counts += torch.bincount(targets[targets != IGNORE], minlength=V)
    share = counts / counts.sum().clamp(min=1)
    return ((1 - UNIFORM) * V * share + UNIFORM).rsqrt()


def weigh_head(
    model: nn.Module, optimizer: Optimizer, batches: "ByStep", batch_tokens: int
) -> None:
    """Give the optimizer the head's gradient by frequency from now on.

    Call it before `constrain`, whose hooks then see these gradients. The targets are counted in
    `batches`, whose steps have `batch_tokens` tokens each. The head must have its own matrix: with
    one that is tied to the embedding, no parameter has that role (ValueError).
    """
    (name,) = [name for name, role in roles(model).items() if role == "head"]
    head = model.get_parameter(name)
    factors = row_factors(batches, batch_tokens, head.shape[0])
    attach(optimizer, ByFrequency(head, factors))
