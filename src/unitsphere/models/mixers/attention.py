"""What the attentions of all architectures share: their heads, decoding state and cost.

The equations are in each architecture's file.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.models.config import ModelConfig, head_size, kv_heads, vocabulary
from unitsphere.models.constraint import Bound
from unitsphere.models.context import Context, KeysValues
from unitsphere.models.parts import Embedding, Scale, ScaleConfig
from unitsphere.ops.attention import split_heads
from unitsphere.ops.norm import cast


class KVState:
    """Keys (after RoPE and norm) and values of one layer, [batch, H_kv, length, d_k] each.

    They are allocated with the first tokens, which tell their type and how many heads are here:
    under tensor parallel a rank has some of them.
    """

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self.batch, self.length, self.device = batch, length, device
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor, past: int | Tensor) -> KeysValues:
        """Append k, v [batch, H_kv, new, d_k] after `past` tokens; all keys and values so far.

        If `past` is a tensor, all of the buffers come back, with what is not written yet: nothing
        changes its shape from token to token, so a compiled graph serves all of them.

        Raises UserError where there is no room for them.
        """
        if self.keys is None or self.values is None:
            shape = (self.batch, k.shape[1], self.length, k.shape[3])
            self.keys = torch.zeros(shape, dtype=k.dtype, device=self.device)
            self.values = torch.zeros(shape, dtype=v.dtype, device=self.device)
        if isinstance(past, Tensor):
            self.keys.index_copy_(2, past[None], k)
            self.values.index_copy_(2, past[None], v)
            return self.keys, self.values
        end = past + k.shape[-2]
        if end > self.length:  # a single token too many would be broadcast to nothing
            raise UserError(
                f"a cache for {self.length} tokens cannot take {end}: give new_cache the length of "
                "all of them"
            )
        self.keys[:, :, past:end] = k
        self.values[:, :, past:end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder(self, rows: Tensor) -> "KVState":
        """The state of these rows."""
        chosen = KVState(len(rows), self.length, self.device)
        if self.keys is not None and self.values is not None:
            chosen.keys, chosen.values = self.keys[rows], self.values[rows]
        return chosen


class AttentionMixer(nn.Module):
    """An attention as a token mixer; an architecture adds its matrices and `forward`."""

    bidirectional: ClassVar[bool] = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_model, self.window = config.d_model, config.window
        self.d_k = head_size(config.d_model, config.n_heads)
        self.n_heads, self.n_kv_heads = config.n_heads, kv_heads(config.n_heads, config.n_kv_heads)
        self.d_q, self.d_kv = self.n_heads * self.d_k, self.n_kv_heads * self.d_k
        self.E_v: Embedding | None = None
        self.s_v: Scale | None = None
        self.offset: int | None = None

    def embed_values(
        self, config: ModelConfig, layer: int | None, std: float, bound: Bound | None
    ) -> None:
        """Give the layer value embeddings: the last one, and every second before it.

        layer: None for cross-attention, which has none. std, bound: of the embedding.
        """
        if layer is not None and (config.n_layers - 1 - layer) % 2 == 0:
            self.E_v = Embedding(vocabulary(config.vocab_size), self.d_kv, std=std, bound=bound)
            self.s_v = Scale(ScaleConfig(scale=1.0), (self.n_kv_heads, 1, 1), self.d_model)

    def with_tokens(self, v: Tensor, context: Context) -> Tensor:
        """v + s_v ⊙ E_v[token] for v [batch, H_kv, time, d_k], s_v [H_kv, 1, 1]; or v as it is."""
        if self.E_v is None or self.s_v is None:
            return v
        assert context.tokens is not None
        e = split_heads(self.E_v(context.tokens), self.n_kv_heads)
        return v + cast(self.s_v() * e, v.dtype)

    def init_state(self, batch: int, length: int) -> KVState:
        """Room for the keys and values of `length` tokens."""
        return KVState(batch, length, next(self.parameters()).device)

    def reorder(self, state: KVState, rows: Tensor) -> KVState:
        """The keys and values of these rows."""
        return state.reorder(rows)

    def flops(self, context: int, causal: bool) -> float:
        """Those of scores and averages, over the pairs of tokens that see each other."""
        reach = min(self.window or context, context) / context
        share = reach * (2 - reach)  # of the pairs of positions, those less than a window apart
        return share * attention_flops(self.d_model, context, causal)


def attention_flops(d_model: int, context: int, causal: bool) -> float:
    """12·d·T for T tokens that all see each other, half of it where attention is causal."""
    return (6 if causal else 12) * d_model * context
