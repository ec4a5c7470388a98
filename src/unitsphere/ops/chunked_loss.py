"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits never exist at once.

The forward pass makes the gradients too, from each chunk's logits while they are there, so the
backward pass only multiplies them by what comes from above: no matrix product more than the plain
way has. For logits z = W h of one token with target t, label smoothing ε and z-loss coefficient c

    loss     = lse − (1 − ε) z_t − ε mean(z) + c lse²,   lse = log Σ exp z
    dloss/dz = (1 + 2 c lse) softmax(z) − (1 − ε) onehot(t) − ε/V

With a soft cap (`activations.soft_cap_`) z are the capped logits, and their slope follows dloss/dz.

Eagerly each operation of a chunk reads and writes all of its logits, in place. On a GPU that takes
longer than the matrix products, so there, and where a run compiles, `fused_chunk` is compiled: it
reads the logits twice and writes their gradient once.

Shapes: N tokens, V vocabulary entries, d width, C tokens of a chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unitsphere.ops.activations import soft_cap_
from unitsphere.ops.compiled import compiled

CHUNK_BYTES = {"cpu": 2**23, "cuda": 2**30}
"""Size of a chunk's logits: on a CPU what its caches hold is fastest, a GPU wants large ones."""


def chunk_rows(vocabulary: int, d: int, device: torch.device) -> int:
    """C: as many tokens as fit the chunk, but no fewer than d.

    Each chunk adds to the whole gradient of W, which costs V·d; C = d keeps that below the
    matrix products' V·d·C.
    """
    return max(d, CHUNK_BYTES.get(device.type, 2**28) // (4 * vocabulary))


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of the loss above over the scored tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        h_Nd: Tensor,
        weight_Vd: Tensor,
        targets_N: Tensor,
        scored_N: Tensor,
        compute: torch.dtype,
        rows: int,
        smoothing: float,
        z_loss: float,
        softcap: float | None,
        with_gradients: bool,
        gradient_V: Tensor | None,
        fused: bool,
    ) -> Tensor:
        """Matrix products in `compute`, everything else in fp32 or wider.

        `targets_N` are within the vocabulary; `scored_N` is 1 for a token that counts, else 0.
        `gradient_V` multiplies the logits' gradient.
        """
        wide = torch.promote_types(compute, torch.float32)
        W_Vd = weight_Vd.to(compute)
        total = h_Nd.new_zeros((), dtype=wide)
        made: list[Tensor] = []
        if with_gradients:
            made = [torch.empty_like(h_Nd), torch.zeros_like(weight_Vd, dtype=wide)]
        chunk = compiled(fused_chunk) if fused else chunk_in_place
        for start in range(0, len(h_Nd), rows):
            part = slice(start, start + rows)
            h_Cd, targets_C, scored_C = h_Nd[part].to(compute), targets_N[part], scored_N[part]
            loss, dz_CV = chunk(
                h_Cd @ W_Vd.T,
                targets_C,
                scored_C,
                smoothing,
                z_loss,
                softcap,
                bool(made),
                gradient_V,
            )
            # Not in place: compiled by torch 2.11, an output changed in place has no gradient.
            total = total + loss
            if made:
                made[0][part] = dz_CV @ W_Vd
                add_product_(made[1], dz_CV.T, h_Cd)
            del dz_CV  # before the next chunk's are made
        if made:
            ctx.save_for_backward(made[0], made[1].to(weight_Vd.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradients that were made in the forward pass, times the one from above."""
        (above,) = grads
        grad_h, grad_W = ctx.saved_tensors
        return (grad_h * above.to(grad_h.dtype), grad_W * above.to(grad_W.dtype), *[None] * 10)


def chunk_in_place(
    z_CV: Tensor,
    targets_C: Tensor,
    scored_C: Tensor,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
    with_gradients: bool,
    gradient_V: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The loss of a chunk, and the gradient of its logits in their dtype.

    Without gradients the second has no meaning. What is in `z_CV` is lost.
    """
    compute = z_CV.dtype
    z_CV = z_CV.to(scored_C.dtype)
    slope_CV = None if softcap is None else soft_cap_(z_CV, softcap)
    loss_C, lse_C = chunk_loss_(z_CV, targets_C, smoothing, z_loss)
    loss = (loss_C * scored_C).sum()
    if with_gradients:
        chunk_gradient_(z_CV, lse_C, targets_C, scored_C, smoothing, z_loss)
        if slope_CV is not None:
            z_CV.mul_(slope_CV)
        if gradient_V is not None:
            z_CV *= gradient_V
    return loss, z_CV.to(compute)


def fused_chunk(
    z_CV: Tensor,
    targets_C: Tensor,
    scored_C: Tensor,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
    with_gradients: bool,
    gradient_V: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What `chunk_in_place` computes, as the formulas above: for the compiler."""
    compute, V = z_CV.dtype, z_CV.shape[1]
    z_CV = z_CV.to(scored_C.dtype)
    slope_CV = None
    if softcap is not None:
        root_CV = softcap * torch.rsqrt(z_CV.square() + softcap**2)
        z_CV, slope_CV = root_CV * z_CV, root_CV**3
    lse_C = z_CV.logsumexp(1)
    picked_C = z_CV.gather(1, targets_C[:, None])[:, 0]
    loss_C = lse_C - (1 - smoothing) * picked_C + z_loss * lse_C.square()
    if smoothing:
        loss_C = loss_C - smoothing * z_CV.mean(1)
    loss = (loss_C * scored_C).sum()
    if not with_gradients:
        return loss, z_CV
    onehot_CV = (targets_C[:, None] == torch.arange(V, device=z_CV.device)).to(z_CV.dtype)
    dz_CV = (1 + 2 * z_loss * lse_C)[:, None] * (z_CV - lse_C[:, None]).exp()
    dz_CV = scored_C[:, None] * (dz_CV - (1 - smoothing) * onehot_CV - smoothing / V)
    if slope_CV is not None:
        dz_CV = dz_CV * slope_CV
    if gradient_V is not None:
        dz_CV = dz_CV * gradient_V
    return loss, dz_CV.to(compute)


def chunk_loss_(
    z_CV: Tensor, targets_C: Tensor, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Each token's loss and lse, [C]; leaves exp(z − max z) in `z_CV`."""
    picked_C = z_CV.gather(1, targets_C[:, None])[:, 0]
    loss_C = -(1 - smoothing) * picked_C
    if smoothing:
        loss_C -= smoothing * z_CV.mean(1)
    top_C1 = z_CV.amax(1, keepdim=True)
    z_CV.sub_(top_C1).exp_()
    lse_C = z_CV.sum(1).log() + top_C1[:, 0]
    return loss_C + lse_C + z_loss * lse_C.square(), lse_C


def chunk_gradient_(
    z_CV: Tensor,
    lse_C: Tensor,
    targets_C: Tensor,
    scored_C: Tensor,
    smoothing: float,
    z_loss: float,
) -> None:
    """Turn the exp(z − max z) of `chunk_loss_` into the gradient of the logits, in place."""
    factor_C = scored_C * (1 + 2 * z_loss * lse_C) / z_CV.sum(1)
    z_CV.mul_(factor_C[:, None])
    if smoothing:
        z_CV.sub_(scored_C[:, None] * (smoothing / z_CV.shape[1]))
    z_CV.scatter_add_(1, targets_C[:, None], (smoothing - 1) * scored_C[:, None])


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, the sum in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
