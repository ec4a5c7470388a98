"""A classifier: a Transformer's features, pooled to one vector a sequence, and a linear head.

| step | formula | method |
|---|---|---|
| features | h = body(tokens), padding masked | `Classifier.pooled` |
| pooling | p = h of the first or last real token, or the mean of the real ones | `pool` |
| head | z = W p/rms(p) + b, W [classes, d] from N(0, 0.02²), b = 0 | `Classifier.forward` |

The head is free: the body's constraint does not reach it. Bodies differ in the length of h (1 for
nGPT, about √d under a final RMSNorm); p/rms(p) gives every head entries of size 1, so that one
learning rate means the same to all. Dropout: none.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from unitsphere.models.parts import Linear
from unitsphere.models.trunk import Transformer
from unitsphere.ops.norm import rms_norm

Pool = Literal["first", "mean", "last"]

HEAD_STD = 0.02  # as BERT's classifier starts (arXiv 1810.04805, the authors' code)
EPS = 1e-12


class Classifier(nn.Module):
    """A body and a head over `classes` classes."""

    def __init__(self, body: Transformer, classes: int, pool: Pool) -> None:
        super().__init__()
        self.body = body
        self.pool: Pool = pool
        d = body.config.d_model
        self.head = Linear(d, classes, std=HEAD_STD, bound=None, bias=True, role="head")
        self.head.to(body.device)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.body.device

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        """Logits [batch, classes] of tokens [batch, time] int64, `real` (bool) where no padding.

        Padding is on the right; every row has a real token.
        """
        p = self.pooled(tokens, real)
        return self.head(rms_norm(p, torch.ones_like(p[0]), EPS))

    def pooled(self, tokens: Tensor, real: Tensor) -> Tensor:
        """p [batch, d]; a causal body never looks at what is on the right, so needs no mask."""
        causal = self.body.objective == "clm"
        h = self.body.features(tokens, mask=None if causal else real[:, None, None, :])
        return pool(h, real, self.pool)


def pool(h: Tensor, real: Tensor, how: Pool) -> Tensor:
    """One vector [batch, d] from h [batch, time, d] and the real tokens [batch, time]."""
    if how == "first":
        return h[:, 0]
    if how == "last":
        last = real.sum(1) - 1
        return h[torch.arange(len(h), device=h.device), last]
    weights = real.to(h.dtype)[..., None]
    return (h * weights).sum(1) / weights.sum(1)
