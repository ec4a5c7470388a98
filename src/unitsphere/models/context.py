"""What attention sees: positions, who looks at whom, and the keys and values kept so far.

A block's attention is written once. Within a sequence it is given a `SelfContext`; across, from
a decoder to the encoder's output, a `CrossContext`, which has no positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from unitsphere.kernels import rope_norm
from unitsphere.ops.attention import attention
from unitsphere.ops.mask import keys_seen
from unitsphere.ops.norm import cast, unit_norm
from unitsphere.ops.rope import rope

KeysValues = tuple[Tensor, Tensor]


class Cache:
    """Keys (after RoPE and norm) and values of every layer: [layers, batch, H_kv, length, d_k].

    Of a decoder that looks at a memory also the memory's, computed once.
    """

    def __init__(self, shape: tuple[int, int, int, int, int], device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.memory: dict[int, KeysValues] = {}
        self.length = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> KeysValues:
        """Append k, v [batch, H_kv, new, d_k] to a layer; all of its keys and values so far."""
        if layer == len(self.keys):
            # The heads that are here: processes may share them.
            shape = (self.shape[1], k.shape[1], *self.shape[3:])
            self.keys.append(torch.zeros(shape, dtype=k.dtype, device=self.device))
            self.values.append(torch.zeros(shape, dtype=v.dtype, device=self.device))
        end = self.length + k.shape[-2]
        self.keys[layer][:, :, self.length : end] = k
        self.values[layer][:, :, self.length : end] = v
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keep these rows [n] int64 of the batch, in this order: a row may occur twice."""
        layers, _, *rest = self.shape
        self.shape = (layers, len(rows), *rest)
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]
        self.memory = {layer: (k[rows], v[rows]) for layer, (k, v) in self.memory.items()}


@dataclass(frozen=True)
class Memory:
    """An encoder's output h [batch, source, d], and its real tokens: bool [batch, 1, 1, source]."""

    h: Tensor
    mask: Tensor | None

    def select(self, rows: Tensor) -> "Memory":
        """These rows [n] int64 of the batch, in this order."""
        return replace(self, h=self.h[rows], mask=None if self.mask is None else self.mask[rows])


class Context(Protocol):
    """What an attention sublayer asks of its surroundings."""

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys [batch, H, time, d_k] with their positions, if there are any."""
        ...

    def rotate_norm(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Norm of that per head, times a scale [H, 1, d_k] or [H, 1, 1] if there is one."""
        ...

    def keys_values(
        self, layer: int, h: Tensor, project: Callable[[Tensor, "Context"], KeysValues]
    ) -> KeysValues:
        """What the layer's queries look at, [batch, H_kv, keys, d_k] each, made by `project`."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """softmax(q kᵀ·scale + M) v, [batch, H, queries, d_k]; `dropout`: of the weights."""
        ...

    def keys_seen(self, k: Tensor) -> Tensor:
        """How many of k each query may look at: [], [queries, 1] or [batch, 1, queries or 1, 1]."""
        ...


@dataclass(frozen=True)
class SelfContext:
    """A sequence that looks at itself, and at the tokens that its cache holds."""

    positions: Tensor
    table: tuple[Tensor, Tensor]
    mask: Tensor | BlockMask | None
    causal: bool
    cache: Cache | None

    def rotate(self, x: Tensor) -> Tensor:
        """RoPE."""
        return rope(x, self.table)

    def rotate_norm(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Norm(RoPE(x))·scale."""
        return rope_norm(x, self.table, scale)

    def keys_values(
        self, layer: int, h: Tensor, project: Callable[[Tensor, Context], KeysValues]
    ) -> KeysValues:
        """Those of h, after the cached ones."""
        k, v = project(h, self)
        k = cast(k, v.dtype)
        return (k, v) if self.cache is None else self.cache.extend(layer, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """Causal attention, or as the mask says. A single query is the last: it sees every key."""
        causal = self.causal and self.mask is None and q.shape[-2] > 1
        return attention(cast(q, v.dtype), k, v, scale, self.mask, causal, dropout)

    def keys_seen(self, k: Tensor) -> Tensor:
        """By the mask, or by causality."""
        if self.mask is None and self.causal:
            return self.positions[:, None] + 1
        return seen(self.mask, k)


@dataclass(frozen=True)
class CrossContext:
    """A sequence that looks at a memory: no positions, every real token is seen."""

    memory: Memory
    cache: Cache | None

    def rotate(self, x: Tensor) -> Tensor:
        """x: two sequences have no common positions."""
        return x

    def rotate_norm(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Norm(x)·scale."""
        return unit_norm(x) if scale is None else cast(unit_norm(x) * scale, x.dtype)

    def keys_values(
        self, layer: int, h: Tensor, project: Callable[[Tensor, Context], KeysValues]
    ) -> KeysValues:
        """Those of the memory, computed once where there is a cache."""
        if self.cache is not None and layer in self.cache.memory:
            return self.cache.memory[layer]
        k, v = project(self.memory.h, self)
        found = cast(k, v.dtype), v
        if self.cache is not None:
            self.cache.memory[layer] = found
        return found

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """Attention over the memory's real tokens."""
        return attention(cast(q, v.dtype), k, v, scale, self.memory.mask, False, dropout)

    def keys_seen(self, k: Tensor) -> Tensor:
        """The memory's real tokens."""
        return seen(self.memory.mask, k)


def seen(mask: Tensor | BlockMask | None, k: Tensor) -> Tensor:
    """How many of the keys k a mask lets through; all of them without one."""
    if mask is None:
        return torch.tensor(k.shape[-2], device=k.device)
    return keys_seen(mask, k.device)
