"""Cross-entropy over the vocabulary."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100  # a target that is not scored


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    reduction: Literal["mean", "sum"],
    label_smoothing: float = 0.0,
) -> Tensor:
    """−log softmax(logits)[target] in nats over the targets that are not `IGNORE`.

    logits [..., V], targets [...] int64; a scalar, in fp32 or wider. With `label_smoothing` ε,
    (1 − ε) of that and ε of the mean of −log softmax over the vocabulary.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.flatten(0, -2).to(wide)
    return F.cross_entropy(
        flat,
        targets.flatten(),
        ignore_index=IGNORE,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
