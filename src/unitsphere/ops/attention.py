"""Scaled dot-product attention over heads."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from unitsphere.errors import UserError
from unitsphere.ops.compiled import compiled


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[batch, time, H·d_k] -> [batch, H, time, d_k]; head i is the i-th block of d_k columns."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """[batch, H, time, d_k] -> [batch, time, H·d_k]."""
    return x.transpose(-3, -2).flatten(-2)


def offset_keys(k: Tensor, start: int) -> Tensor:
    """Keys [..., keys, d_k] with the dimensions from `start` on of the key before; 0 in the first.

    A query that matches them finds the token after the one that it looks for: one layer is enough
    to repeat what followed the same token earlier.
    """
    before = F.pad(k[..., :-1, start:], (0, 0, 1, 0))
    return torch.cat([k[..., :start], before], dim=-1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | BlockMask | None,
    causal: bool,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q kᵀ · scale + M) v (nGPT eq. 13), with H_kv heads of keys for H of queries.

    q is [batch, H, queries, d_k]; k and v are [batch, H_kv, keys, d_k], H_kv a divisor of H: head
    i of the queries looks at head i // (H/H_kv) of the keys. `mask` is true where a query may
    look, broadcast to [batch, H, queries, keys], or is that in blocks. `causal` is for no mask
    (torch 2.14 refuses both): query i looks at keys 0..i. `dropout` is the share of the softmax's
    weights that is dropped, the others growing by 1/(1 − dropout); blocks go without: a
    `UserError`.

    Groups are left to the kernels, which read a key once for its group. Only under a mask on a
    GPU are k and v repeated: not in every version of torch does SDPA's kernel for masks take
    groups.
    """
    grouped = q.shape[-3] != k.shape[-3]
    if isinstance(mask, BlockMask):
        if dropout:
            raise UserError("FlexAttention drops no weights: give a mask of booleans instead")
        flex = compiled(flex_attention)
        return flex(q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped)
    if grouped and mask is not None and q.is_cuda:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )
