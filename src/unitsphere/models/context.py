"""What a token mixer sees in addition to h: positions, the mask, and the state kept while decoding.

An architecture's attention is written once. Within a sequence it is given a `SelfContext`; across,
from a decoder to the encoder's output, a `CrossContext`, which has no positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from unitsphere.errors import UserError
from unitsphere.kernels import attention, rope_norm
from unitsphere.ops.attention import keys_seen, offset_keys
from unitsphere.ops.norm import cast, unit_norm
from unitsphere.ops.rope import rope

KeysValues = tuple[Tensor, Tensor]


@dataclass
class LayerState:
    """What a layer keeps while a model decodes."""

    mixer: Any
    """made by the layer's token mixer; mixers of other kinds keep other states"""
    memory: KeysValues | None = None
    """keys and values of an encoder's output, in a decoder: computed once"""


class Cache:
    """The decoding state of a model, layer by layer, and how many tokens it has seen."""

    def __init__(self, mixers: Sequence[Any], batch: int, length: int) -> None:
        self.mixers, self.batch = mixers, batch
        self.layers = [LayerState(mixer.init_state(batch, length)) for mixer in mixers]
        self.length = 0
        self.last: Tensor | None = None  # the token [batch, 1] that it has seen last

    def before(self, tokens: Tensor) -> int:
        """How many tokens it has seen before these [batch, time]; UserError for other rows."""
        if len(tokens) != self.batch:  # a single row would be broadcast to all of them
            raise UserError(
                f"a cache for {self.batch} rows cannot take {len(tokens)}: give new_cache the "
                "batch that is decoded"
            )
        return self.length

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows [n] int64 of the batch, in this order: a row may occur twice."""
        self.batch = len(rows)
        self.last = None if self.last is None else self.last[rows]
        for mixer, layer in zip(self.mixers, self.layers, strict=True):
            layer.mixer = mixer.reorder(layer.mixer, rows)
            if layer.memory is not None:
                k, v = layer.memory
                layer.memory = k[rows], v[rows]


@dataclass(frozen=True)
class Memory:
    """An encoder's output h [batch, source, d], and its real tokens: bool [batch, 1, 1, source]."""

    h: Tensor
    mask: Tensor | None

    def select(self, rows: Tensor) -> "Memory":
        """These rows [n] int64 of the batch, in this order."""
        return replace(self, h=self.h[rows], mask=None if self.mask is None else self.mask[rows])


@dataclass(frozen=True)
class SelfContext:
    """A sequence that looks at itself, and at the tokens before it that a model has decoded."""

    positions: Tensor
    table: tuple[Tensor, Tensor]
    mask: Tensor | BlockMask | None
    causal: bool
    past: int | Tensor = 0
    """tokens before these: a tensor, where the compiler must not depend on their number"""
    real: Tensor | None = None
    """bool [batch, time], false for padding on the left; None: there is none"""
    documents: Tensor | None = None
    """int [batch, time]: a token sees only its own document; None: one per row"""
    layer: LayerState | None = None
    """the state of the layer that reads this, while a model decodes"""
    tokens: Tensor | None = None
    """int64 [batch, time]: the tokens themselves; None where no layer reads them"""

    @property
    def state(self) -> Any:
        """What the layer's mixer keeps while a model decodes; None otherwise."""
        return None if self.layer is None else self.layer.mixer

    def of(self, layer: LayerState) -> "SelfContext":
        """The same for the layer with that state."""
        return SelfContext(
            self.positions, self.table, self.mask, self.causal,
            self.past, self.real, self.documents, layer, self.tokens,
        )  # fmt: skip

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys [batch, H, time, d_k] with their positions, by RoPE."""
        return rope(x, self.table)

    def rotate_norm(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Norm(RoPE(x)) per head, times a scale [H, 1, d_k] or [H, 1, 1] if there is one."""
        return rope_norm(x, self.table, scale)

    def keys_values(
        self,
        h: Tensor,
        project: Callable[[Tensor, "Context"], KeysValues],
        offset: int | None = None,
    ) -> KeysValues:
        """What queries look at, [batch, H_kv, keys, d_k] each: `project` of h, after those before.

        offset: from this dimension on a key is that of the token before; None: nowhere.
        The state keeps each token's own key, and offsets are made of all of them, so that the state
        has no more to remember.
        """
        k, v = project(h, self)
        k = cast(k, v.dtype)
        if offset is not None:
            k = self.ended(k, offset)
        if self.layer is not None:
            k, v = self.layer.mixer.extend(k, v, self.past)
        return (k, v) if offset is None else (offset_keys(k, offset), v)

    def ended(self, k: Tensor, start: int) -> Tensor:
        """k with 0 from `start` on where the next token begins a text: it has none before it."""
        if self.documents is None and self.real is None:
            return k
        ends = torch.zeros_like(k[:, 0, :, 0], dtype=torch.bool)
        if self.documents is not None:
            ends = ends | (self.documents != self.documents.roll(-1, dims=1))
        if self.real is not None:
            ends = ends | ~self.real
        late = torch.arange(k.shape[-1], device=k.device) >= start
        return k.masked_fill(ends[:, None, :, None] & late, 0.0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """softmax(q kᵀ·scale + M) v, [batch, H, queries, d_k]; `dropout`: of the weights.

        Causal, or as the mask says. A single query is the last: it sees every key.
        """
        # torch.export's comparison of sizes is not a bool, which SDPA insists on.
        causal = bool(self.causal and self.mask is None and q.shape[-2] > 1)
        return attention(cast(q, v.dtype), k, v, scale, self.mask, causal, dropout)

    def keys_seen(self, k: Tensor) -> Tensor:
        """How many of k each query may look at: [], [queries, 1] or [batch, 1, queries or 1, 1]."""
        if self.mask is None and self.causal:
            return self.positions[:, None] + 1
        return seen(self.mask, k)


@dataclass(frozen=True)
class CrossContext:
    """A sequence that looks at a memory: it has no positions, and every real token is seen."""

    memory: Memory
    layer: LayerState | None = None
    tokens: None = None

    def rotate(self, x: Tensor) -> Tensor:
        """x: two sequences have no common positions."""
        return x

    def rotate_norm(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Norm(x)·scale."""
        return unit_norm(x) if scale is None else cast(unit_norm(x) * scale, x.dtype)

    def keys_values(
        self,
        h: Tensor,
        project: Callable[[Tensor, "Context"], KeysValues],
        offset: int | None = None,
    ) -> KeysValues:
        """Those of the memory, computed once while a model decodes; never offset."""
        if self.layer is not None and self.layer.memory is not None:
            return self.layer.memory
        k, v = project(self.memory.h, self)
        found = cast(k, v.dtype), v
        if self.layer is not None:
            self.layer.memory = found
        return found

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """Attention over the memory's real tokens."""
        return attention(cast(q, v.dtype), k, v, scale, self.memory.mask, False, dropout)

    def keys_seen(self, k: Tensor) -> Tensor:
        """The memory's real tokens."""
        return seen(self.memory.mask, k)


Context = SelfContext | CrossContext
"""What an attention sublayer asks of its surroundings."""


def seen(mask: Tensor | BlockMask | None, k: Tensor) -> Tensor:
    """How many of the keys k a mask lets through; all of them without one."""
    if mask is None:
        return torch.tensor(k.shape[-2], device=k.device)
    return keys_seen(mask, k.device)
