"""Scaled dot-product attention over heads, and its masks: the past, a window, the same document.

One rule of positions (`MaskRule.function`) makes both forms of mask that attention takes: booleans
for SDPA, true where a query may look, and a `BlockMask` for FlexAttention, which skips blocks that
are hidden entirely.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

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


MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""bool of (row of the batch, head, query's position, key's position), shapes that broadcast."""


@dataclass(frozen=True)
class MaskRule:
    """Which keys a query may look at.

    causal: itself and the tokens before it. window: tokens less than `window` away, itself
    included. documents [rows, time]: tokens that have the query's own number there.
    """

    causal: bool
    window: int | None = None
    documents: Tensor | None = None

    @property
    def narrow(self) -> bool:
        """Whether a window or documents hide anything."""
        return self.window is not None or self.documents is not None

    def function(self) -> MaskFunction:
        """The rule as a function of positions."""
        causal, window, documents = self.causal, self.window, self.documents

        def looks(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            away = query - key
            see = away >= 0 if causal else away == away
            if window is not None:
                see = see & (away.abs() < window)
            if documents is not None:
                see = see & (documents[row, query] == documents[row, key])
            return see

        return looks

    @property
    def rows(self) -> int:
        """Rows of a batch that have different masks: 1 without documents."""
        return 1 if self.documents is None else len(self.documents)

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """bool, [rows, 1, queries, keys], or [queries, keys] without documents.

        The queries are the last of the keys.
        """
        return dense(self.function(), self.rows, n_queries, n_keys, device)

    def blocks(self, time: int, device: torch.device) -> BlockMask:
        """The mask [rows, 1, time, time] in blocks."""
        create = create_block_mask if device.type == "cpu" else compiled(create_block_mask)
        return create(self.function(), self.rows, None, time, time, device=device)


def dense(
    function: MaskFunction, rows: int, n_queries: int, n_keys: int, device: torch.device
) -> Tensor:
    """Where the function is true, bool, broadcast to [rows, 1, queries, keys]."""
    keys = torch.arange(n_keys, device=device)
    row = torch.arange(rows, device=device)[:, None, None, None]
    return function(row, torch.zeros_like(row), keys[n_keys - n_queries :, None], keys)


def takes_blocks(device: torch.device, d_k: int, dtype: torch.dtype) -> bool:
    """Whether `attention` takes a `BlockMask`: FlexAttention's kernels are for GPUs.

    They need heads of at least 16, and do not multiply fp64. (On a CPU FlexAttention has no
    backward pass.)
    """
    return device.type == "cuda" and d_k >= 16 and dtype != torch.float64


def attention_mask(
    rule: MaskRule,
    n_queries: int,
    n_keys: int,
    device: torch.device,
    left_padding: Tensor | None = None,
    mask: Tensor | None = None,
    blocks: bool = False,
) -> Tensor | BlockMask | None:
    """The mask for queries that are the last of the keys, or None where attention needs none.

    None: plain causality, or everything is seen. A `BlockMask` if `blocks` says that attention
    takes one and no padding or mask is given. Otherwise bool, broadcast to [batch, 1, queries,
    keys].

    `left_padding` [batch] counts each row's leading padding, which is hidden. `mask`, broadcast to
    that shape, replaces causality. A query that would see nothing sees itself, so that its softmax
    has something to sum: a padding query, or one whose window is all padding.

    Raises UserError for a `mask` of numbers.
    """
    check_mask(mask)
    given = left_padding is not None or mask is not None
    if not (given or rule.narrow) and (not rule.causal or n_queries in (1, n_keys)):
        return None
    if blocks and not given and n_queries == n_keys:
        return rule.blocks(n_keys, device)
    keys = torch.arange(n_keys, device=device)
    itself = keys == keys[n_keys - n_queries :, None]
    if mask is None:
        see = rule.dense(n_queries, n_keys, device)
    elif not rule.narrow:
        see = mask
    else:
        see = mask & MaskRule(False, rule.window, rule.documents).dense(n_queries, n_keys, device)
        see = see | itself & ~see.any(-1, keepdim=True)
    if left_padding is not None:
        padding = keys < left_padding[:, None, None, None]
        see = see & ~padding | padding & itself
    return see


def check_mask(mask: Tensor | None) -> None:
    """Raise UserError for a mask of numbers: SDPA adds these to the logits, so that 0 hides
    nothing."""
    if mask is not None and mask.dtype != torch.bool:
        raise UserError(
            f"a mask is bool, true where a token may look, and not {mask.dtype}: take mask.bool() "
            "of ones and zeros"
        )


def keys_seen(mask: Tensor | BlockMask, device: torch.device) -> Tensor:
    """How many keys each query sees, [..., queries, 1]."""
    if isinstance(mask, BlockMask):
        rows, _, n_queries, n_keys = mask.shape
        mask = dense(mask.mask_mod, rows, n_queries, n_keys, device)
    return mask.sum(-1, keepdim=True)
