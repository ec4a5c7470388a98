"""Activations computed again in the backward pass instead of kept: memory for time.

| setting | kept of a block | computed again |
|---|---|---|
| none | everything | nothing |
| selective | its input, matrix products, attention | norms, scales, activations, rotations |
| full | its input | everything |

Dropout draws the same numbers again, so losses and gradients stay the same.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from unitsphere.models.trunk import Transformer

Recompute = Literal["none", "selective", "full"]

aten = torch.ops.aten
KEPT = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.all_reduce.default,  # tensor parallel: sums over processes
}
"""Operations that are dear to repeat."""


def recompute_blocks(model: Transformer, how: Recompute) -> None:
    """Make every block of the model keep only what `how` says, in place."""
    if how == "none":
        return
    context = {"context_fn": selective} if how == "selective" else {}
    for block in [*model.blocks, *(model.encoder or [])]:
        # Around the forward method, so that names stay, and FSDP and compile see it within.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **context)


def selective() -> Any:
    """torch's contexts of the forward pass and its repetition."""
    return create_selective_checkpoint_contexts(policy)


def policy(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Whether the result of an operation is kept."""
    kept = operation in KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
