"""Cross-entropy over the vocabulary: of logits, or of a linear head whose logits are never kept."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.ops.activations import soft_capped
from unitsphere.ops.chunked_loss import ChunkedCrossEntropy, chunk_rows
from unitsphere.ops.dtensor import whole
from unitsphere.ops.linear import product_dtype, scale_rows
from unitsphere.ops.sharded_loss import IGNORE, is_sharded, mean_over, sharded_cross_entropy

Reduction = Literal["mean", "sum"]
Path = Literal["auto", "plain", "chunked", "fused", "torch", "liger"]


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    reduction: Reduction,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """−log softmax(logits)[target] in nats over the targets that are not `IGNORE`.

    logits [..., V], targets [...] int64; a scalar, in fp32 or wider. With `label_smoothing` ε,
    (1 − ε) of that and ε of the mean of −log softmax over the vocabulary. `z_loss` times
    (log Σ exp logits)² is added for each scored token (PaLM, arXiv 2204.02311, §5).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.flatten(0, -2).to(wide)
    loss = F.cross_entropy(
        flat,
        targets.flatten(),
        ignore_index=IGNORE,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    if not z_loss:
        return loss
    squares = flat.logsumexp(-1).square()[targets.flatten() != IGNORE]
    return loss + z_loss * (squares.mean() if reduction == "mean" else squares.sum())


def linear_cross_entropy(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | float | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    path: Path = "auto",
    softcap: float | None = None,
    logit_gradient: Tensor | None = None,
) -> Tensor:
    """`cross_entropy` of the logits scale ⊙ (weight h), without keeping the logits.

    h [..., d], weight [V, d], targets [...] int64, `IGNORE` where not scored; scale [V], one for
    all, or none, is folded into the weight. With `softcap` c the logits z are c·z/√(c² + z²) of
    these. A scalar, in fp32 or wider. Under autocast the matrix products are in its type, and the
    weight's gradient still is summed in fp32. `logit_gradient` [V] multiplies the gradient of
    scale ⊙ (weight h) (`precondition`).

    | path | logits in memory | serves |
    |---|---|---|
    | plain | all of them | everything |
    | chunked | one chunk (`ops.chunked_loss`) | everything |
    | fused | one chunk, all but its products compiled | everything |
    | torch | one chunk, by torch's `linear_cross_entropy` (2.13) | no smoothing, z-loss or soft \
cap; fp32 and wider: in bf16 it rounds the loss itself to bf16 |
    | liger | one chunk, by Liger's Triton kernels | CUDA, no soft cap |
    | auto | chunked | |

    A weight that processes share (a DTensor) is served chunk by chunk, whatever the path: see
    `ops.sharded_loss`. Raises UserError for a path that is not there or does not serve, and for a
    reduction or a smoothing that there is not.
    """
    check_numbers(reduction, label_smoothing)
    folded = scale_rows(weight, scale)
    compute = product_dtype(h, folded)
    if is_sharded(folded):
        numbers = reduction, label_smoothing, z_loss, softcap, logit_gradient
        return sharded_cross_entropy(h, folded, targets, compute, *numbers)
    if path == "plain":
        logits = F.linear(h, folded)
        if logit_gradient is not None and logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * logit_gradient)
        logits = soft_capped(logits, softcap)
        return cross_entropy(logits, targets, reduction, label_smoothing, z_loss)
    if softcap is not None and path in ("torch", "liger"):
        raise UserError(f"the path {path} has no soft cap: take the path chunked")
    if logit_gradient is not None and path in ("torch", "liger"):
        raise UserError(f"the path {path} has no logit_gradient: take the path chunked")
    flat, wanted = h.flatten(0, -2), targets.flatten()
    if path == "torch":
        check_torch(compute, label_smoothing, z_loss)
        return by_torch(flat.to(compute), folded.to(compute), wanted, reduction)
    if path == "liger":
        return by_liger(flat, folded, wanted, compute, reduction, label_smoothing, z_loss)
    numbers = reduction, label_smoothing, z_loss, softcap
    fused = path == "fused"
    return chunked(
        flat, folded, wanted, compute, *numbers, logit_gradient=logit_gradient, fused=fused
    )


def precondition(scale: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """The logits' scale s [V], and r [V], which the logits' gradient is to be multiplied by.

    Logit-gradient preconditioning ("Training nGPT", arXiv 2608.01284): of the logits z = s ⊙ u the
    gradient of u is ∂u = (s/mean s)^q ⊙ ∂z in the place of s ⊙ ∂z, with q = `power`. So
    r = (s/mean s)^q/s, by absolute values, and s's own gradient, u ⊙ ∂z, is divided by r again.
    """
    size = scale.detach().abs()
    size = size.clamp(min=torch.finfo(size.dtype).tiny)
    ratio = (size / whole(size.mean())) ** power / size
    if scale.requires_grad:
        scale = scale.clone()
        scale.register_hook(lambda gradient: gradient / ratio)
    return scale, ratio


def chunked(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    compute: torch.dtype,
    reduction: Reduction,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None = None,
    rows: int | None = None,
    logit_gradient: Tensor | None = None,
    fused: bool = False,
) -> Tensor:
    """By `ChunkedCrossEntropy`, `rows` tokens at a time; none: as many as suit the device."""
    scored = targets != IGNORE
    total = ChunkedCrossEntropy.apply(
        h,
        weight,
        targets.masked_fill(~scored, 0),
        scored.to(torch.promote_types(compute, torch.float32)),
        compute,
        rows or chunk_rows(len(weight), weight.shape[1], h.device),
        label_smoothing,
        z_loss,
        softcap,
        torch.is_grad_enabled() and (h.requires_grad or weight.requires_grad),
        logit_gradient,
        fused,
    )
    assert isinstance(total, Tensor)
    return total if reduction == "sum" else mean_over(total, scored.sum())


def check_numbers(reduction: str, label_smoothing: float) -> None:
    """Raise UserError for what would be another loss than the one that is asked for."""
    if reduction not in ("mean", "sum"):
        raise UserError(
            f"reduction must be mean or sum: {reduction}; for the loss of each token, take "
            "torch's cross_entropy of the model's logits"
        )
    if not 0 <= label_smoothing <= 1:
        raise UserError(f"label_smoothing must be between 0 and 1: {label_smoothing}")


def check_torch(compute: torch.dtype, label_smoothing: float, z_loss: float) -> None:
    """Raise UserError unless torch has its own chunked loss and it can compute this one."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        raise UserError(
            f"torch {torch.__version__} has no linear_cross_entropy: take the path chunked"
        )
    if label_smoothing or z_loss or torch.finfo(compute).bits < 32:
        raise UserError(
            "torch's linear_cross_entropy has neither label smoothing nor z-loss and rounds "
            "the loss of 16-bit products: take the path chunked"
        )


def by_torch(h: Tensor, weight: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """By torch's `linear_cross_entropy`, with chunks of this module's size."""
    # torch.compile insists on what a second backward pass needs, by a warning that breaks graphs.
    options = torch.nn.LinearCrossEntropyOptions(
        allow_retain_graph=True,
        batch_chunk_size=chunk_rows(len(weight), weight.shape[1], h.device),
    )
    return F.linear_cross_entropy(
        h, weight, targets, reduction=reduction, ignore_index=IGNORE, options=options
    )


def by_liger(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    compute: torch.dtype,
    reduction: Reduction,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """By Liger's `fused_linear_cross_entropy`, the weight's gradient summed in fp32."""
    if h.device.type != "cuda":
        raise UserError(f"Liger's kernels need a GPU, not {h.device}: take the path chunked")
    try:
        from liger_kernel.transformers.functional import (  # pyright: ignore[reportMissingImports]
            liger_fused_linear_cross_entropy,
        )
    except ModuleNotFoundError as error:
        raise UserError(
            "Liger is not installed: pip install liger-kernel, or take the path chunked"
        ) from error
    return liger_fused_linear_cross_entropy(
        h.to(compute),
        weight.to(compute),
        targets,
        ignore_index=IGNORE,
        lse_square_scale=z_loss,
        label_smoothing=label_smoothing,
        reduction=reduction,
        accum_dtype=torch.float32,
    )
