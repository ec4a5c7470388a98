"""Cross-entropy of a linear head whose vocabulary is sharded: each rank holds some of its rows.

As `ops.chunked_loss`, a chunk of tokens at a time and the gradients in the forward pass; the
logits of other ranks are never sent. For a chunk the processes exchange the largest logit,
then three sums per token, and at the end the sum of their gradients of h.

    loss     = lse − (1 − ε) z_t − ε mean(z) + c lse²,   lse = log Σ exp z
    dloss/dz = (1 + 2 c lse) softmax(z) − (1 − ε) onehot(t) − ε/V     (with a soft cap, its slope)

Shapes: N tokens, V vocabulary entries, of them v here, d width, C tokens of a chunk.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from unitsphere.ops.activations import soft_cap_
from unitsphere.ops.chunked_loss import add_product_, chunk_rows
from unitsphere.ops.dtensor import local
from unitsphere.ops.linear import scale_rows

IGNORE = -100  # a target that is not scored


def is_sharded(weight: Tensor) -> bool:
    """Whether a head's weight is a DTensor, of which this process holds some rows."""
    return hasattr(weight, "placements")


def gathered_linear(h: Tensor, weight: Tensor, scale: Tensor | float | None) -> Tensor:
    """All logits, in every process, of h [..., d] and a weight [V, d] that processes share."""
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(weight, DTensor)
    shared = DTensor.from_local(h, weight.device_mesh, [Replicate()], run_check=False)
    logits = F.linear(shared, scale_rows(weight, scale))
    assert isinstance(logits, DTensor)
    return logits.redistribute(placements=[Replicate()]).to_local()


def sharded_cross_entropy(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    compute: torch.dtype,
    reduction: Literal["mean", "sum"],
    label_smoothing: float,
    z_loss: float,
    softcap: float | None = None,
    logit_gradient: Tensor | None = None,
) -> Tensor:
    """The loss above over the scored targets, the same number in every process.

    h [..., d] and targets [...], the same everywhere; weight [V, d], a DTensor cut evenly by rows.
    Matrix products are in `compute`. `logit_gradient` [V], cut as the weight, multiplies the
    logits' gradient.
    """
    from torch.distributed.tensor import DTensor

    assert isinstance(weight, DTensor)
    mesh, own = weight.device_mesh, weight.to_local()
    scored = targets.flatten() != IGNORE
    total = ShardedCrossEntropy.apply(
        h.flatten(0, -2),
        own,
        targets.flatten().clamp(min=0) - mesh.get_local_rank() * len(own),
        scored.to(torch.promote_types(compute, torch.float32)),
        compute,
        label_smoothing,
        z_loss,
        softcap,
        mesh.get_group(),
        torch.is_grad_enabled() and (h.requires_grad or weight.requires_grad),
        None if logit_gradient is None else local(logit_gradient),
    )
    assert isinstance(total, Tensor)
    return total if reduction == "sum" else mean_over(total, scored.sum())


def mean_over(total: Tensor, count: Tensor) -> Tensor:
    """The mean over `count` scored targets whose losses have this sum.

    The mean over none is NaN, but its gradient is 0, as in torch's plain loss.
    """
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)


class ShardedCrossEntropy(torch.autograd.Function):
    """Sum of the loss above over the scored tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        h_Nd: Tensor,
        weight_vd: Tensor,
        targets_N: Tensor,
        scored_N: Tensor,
        compute: torch.dtype,
        smoothing: float,
        z_loss: float,
        softcap: float | None,
        group: dist.ProcessGroup,
        with_gradients: bool,
        gradient_v: Tensor | None,
    ) -> Tensor:
        """Matrix products in `compute`, everything else in fp32 or wider.

        `targets_N` count from this process's first entry on; outside 0 … v−1 they are another's.
        """
        wide = torch.promote_types(compute, torch.float32)
        W_vd = weight_vd.to(compute)
        total = h_Nd.new_zeros((), dtype=wide)
        made: list[Tensor] = []
        if with_gradients:
            made = [torch.empty_like(h_Nd, dtype=wide), torch.zeros_like(weight_vd, dtype=wide)]
        rows = chunk_rows(len(weight_vd), weight_vd.shape[1], h_Nd.device)
        for start in range(0, len(h_Nd), rows):
            part = slice(start, start + rows)
            h_Cd, scored_C = h_Nd[part].to(compute), scored_N[part]
            z_Cv = (h_Cd @ W_vd.T).to(wide)
            slope_Cv = None if softcap is None else soft_cap_(z_Cv, softcap)
            chunk = Chunk(z_Cv, targets_N[part], group)
            total = total + (chunk.loss(smoothing, z_loss) * scored_C).sum()
            if made:
                z_Cv = chunk.gradient_(scored_C, smoothing, z_loss)
                z_Cv = z_Cv if slope_Cv is None else z_Cv.mul_(slope_Cv)
                if gradient_v is not None:
                    z_Cv *= gradient_v
                z_Cv = z_Cv.to(compute)
                made[0][part] = z_Cv @ W_vd
                add_product_(made[1], z_Cv.T, h_Cd)
            del z_Cv, slope_Cv, chunk  # before the next chunk's are made
        if made:
            dist.all_reduce(made[0], group=group)
            ctx.save_for_backward(made[0].to(h_Nd.dtype), made[1].to(weight_vd.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradients that were made in the forward pass, times the one from above."""
        (above,) = grads
        grad_h, grad_W = ctx.saved_tensors
        return (grad_h * above.to(grad_h.dtype), grad_W * above.to(grad_W.dtype), *[None] * 9)


class Chunk:
    """This process's logits z [C, v] of some tokens, and what all processes know of theirs."""

    def __init__(self, z_Cv: Tensor, targets_C: Tensor, group: dist.ProcessGroup) -> None:
        self.vocabulary = z_Cv.shape[1] * group.size()
        self.mine_C = (targets_C >= 0) & (targets_C < z_Cv.shape[1])
        self.place_C1 = (targets_C * self.mine_C)[:, None]
        picked_C = z_Cv.gather(1, self.place_C1)[:, 0] * self.mine_C
        mean_C = z_Cv.sum(1) / self.vocabulary
        top_C = z_Cv.amax(1)
        dist.all_reduce(top_C, op=dist.ReduceOp.MAX, group=group)
        self.z_Cv = z_Cv.sub_(top_C[:, None]).exp_()
        sums_3C = torch.stack([picked_C, mean_C, z_Cv.sum(1)])
        dist.all_reduce(sums_3C, group=group)
        self.picked_C, self.mean_C, self.exp_C = sums_3C
        self.lse_C = self.exp_C.log() + top_C

    def loss(self, smoothing: float, z_loss: float) -> Tensor:
        """Each token's loss, [C]."""
        aim_C = (1 - smoothing) * self.picked_C + smoothing * self.mean_C
        return self.lse_C - aim_C + z_loss * self.lse_C.square()

    def gradient_(self, scored_C: Tensor, smoothing: float, z_loss: float) -> Tensor:
        """The gradient of this process's logits, [C, v], in their place."""
        factor_C = scored_C * (1 + 2 * z_loss * self.lse_C) / self.exp_C
        self.z_Cv.mul_(factor_C[:, None])
        if smoothing:
            self.z_Cv.sub_(scored_C[:, None] * (smoothing / self.vocabulary))
        at_target_C = (smoothing - 1) * scored_C * self.mine_C
        return self.z_Cv.scatter_add_(1, self.place_C1, at_target_C[:, None])
