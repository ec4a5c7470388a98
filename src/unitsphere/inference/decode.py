"""Logits of the next token: eager with a growing cache, or by one compiled graph of fixed shapes.

Compiled, keys and values lie in buffers of a fixed length, the position is a tensor, and what is
not written yet is masked: no shape changes from one token to the next, so nothing is compiled
anew. Lengths are rounded up to powers of two, so that texts of other lengths share a graph.

Shapes: B rows, T tokens of the prompts, L length of the buffers, V vocabulary entries.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.models.context import Cache, KeysValues, SelfContext
from unitsphere.models.trunk import Transformer
from unitsphere.ops.mask import MaskRule
from unitsphere.ops.rope import rope_table

SHORTEST = 64
"""The shortest buffers of keys and values, in tokens."""
GRAPHS = 64
"""Pairs of batch and length that a process compiles before torch refuses to go on."""

Next = Callable[[Tensor], Tensor]
"""Tokens [B, T], the prompts, and then [B, 1] what was drawn -> logits [B, V] of what follows."""


def eager(model: Transformer, batch: int, length: int, padding_B: Tensor | None) -> Next:
    """With a cache that holds `length` tokens a row; `padding_B` counts each row's left padding."""
    cache = model.new_cache(batch, length)

    def following(tokens_BT: Tensor) -> Tensor:
        return last_logits(model, tokens_BT, cache, padding_B)

    return following


def compiled(model: Transformer, batch: int, length: int, padding_B: Tensor | None) -> Next:
    """The prompts eagerly, each further token by a compiled graph."""
    if model.max_length is not None and length > model.max_length:
        raise UserError(
            f"a text of {length} tokens, but the model has learned positions for "
            f"{model.max_length}: ask for less, or leave out compiling"
        )
    cache = model.new_cache(batch, rounded(length))
    if padding_B is None:
        padding_B = torch.zeros(batch, dtype=torch.int64, device=model.device)
    step = compiled_step()

    def following(tokens_BT: Tensor) -> Tensor:
        if cache.length == 0:
            return last_logits(model, tokens_BT, cache, padding_B)
        at = torch.tensor(cache.length, device=model.device)
        cache.length += 1
        return step(model, tokens_BT, at, padding_B, cache.keys, cache.values)

    return following


def rounded(length: int) -> int:
    """The next power of two."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def last_logits(
    model: Transformer, tokens_BT: Tensor, cache: Cache, padding_B: Tensor | None
) -> Tensor:
    """Logits [B, V] after the last token alone."""
    return model.logits(model.features(tokens_BT, cache=cache, left_padding=padding_B)[:, -1])


class Buffers(Cache):
    """Keys and values of a fixed length, written at a position that is a tensor."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], at: Tensor) -> None:
        self.keys, self.values, self.at = keys, values, at

    def extend(self, layer: int, k: Tensor, v: Tensor) -> KeysValues:
        """Write k, v [B, H_kv, 1, d_k]; all of the layer's, those not written yet too."""
        self.keys[layer].index_copy_(2, self.at[None], k)
        self.values[layer].index_copy_(2, self.at[None], v)
        return self.keys[layer], self.values[layer]


def one_token(
    model: Transformer,
    tokens_B1: Tensor,
    at: Tensor,
    padding_B: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
) -> Tensor:
    """Logits [B, V] after one more token a row, the `at`-th [] of them, padding included."""
    seen = torch.arange(keys[0].shape[2], device=at.device)
    see = MaskRule(causal=True, window=model.config.window).function()(at, at, at, seen)
    see = see & (seen >= padding_B[:, None, None, None])
    positions = (at[None] - padding_B[:, None]).clamp(min=0)
    wide = torch.promote_types(keys[0].dtype, torch.float32)
    cos, sin = rope_table(positions, model.d_rot, model.rope_base, wide)
    table = cos[:, None], sin[:, None]
    context = SelfContext(positions, table, see, True, Buffers(keys, values, at))
    h = model.embed(tokens_B1, positions)
    for block in model.blocks:
        h = block(h, context)
    return model.logits(model.norm(h)[:, -1])


@functools.cache
def compiled_step() -> Callable[..., Tensor]:
    """`one_token`, compiled for each batch and length at its first call."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(one_token, fullgraph=True, dynamic=False)
