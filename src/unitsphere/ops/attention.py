"""Scaled dot-product attention over heads."""

import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[batch, time, H·d_k] -> [batch, H, time, d_k]; head i is the i-th block of d_k columns."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """[batch, H, time, d_k] -> [batch, time, H·d_k]."""
    return x.transpose(-3, -2).flatten(-2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Tensor:
    """softmax(q kᵀ · scale + M) v (nGPT eq. 13), with H_kv heads of keys for H of queries.

    q is [batch, H, queries, d_k]; k and v are [batch, H_kv, keys, d_k], H_kv a divisor of H: head
    i of the queries looks at head i // (H/H_kv) of the keys. `mask` is true where a query may
    look, broadcast to [batch, H, queries, keys]. `causal` needs no mask: query i looks at keys
    0..i.

    Groups are left to SDPA (`enable_gqa`), which reads a key once for its group. Only under a
    mask on a GPU are k and v repeated: its kernel for masks takes no groups.
    """
    grouped = q.shape[-3] != k.shape[-3]
    if grouped and mask is not None and q.is_cuda:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def visible(
    n_queries: int,
    n_keys: int,
    left_padding: Tensor | None,
    device: torch.device,
    causal: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """True where a query may look at a key, for queries that are the last of the keys.

    Causal or everywhere, unless a `mask`, broadcast to [batch, 1, queries, keys], says it.
    Shape [queries, keys], or [batch, 1, queries, keys] if `left_padding` [batch] counts each
    row's leading padding. A padding query sees itself, so that its softmax has something to sum.
    """
    keys = torch.arange(n_keys, device=device)
    queries = keys[n_keys - n_queries :, None]
    if mask is None:
        mask = keys <= queries if causal else torch.ones_like(keys <= queries)
    if left_padding is None:
        return mask
    padding = keys < left_padding[:, None, None, None]
    return mask & ~padding | padding & (keys == queries)
