"""What all oracles share around their equations: the order of layers, masks, memory, the loss.

An oracle gives its own `embed`, `block`, `memory` and `logits`, and takes the functions below from
`Oracle`. Nothing here knows an architecture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference import basics
from reference.basics import Tensors, of_layer


def as_stored(tensors: Tensors, settings: Any) -> Tensors:
    """The weights that the forward pass reads, unless an oracle says otherwise."""
    return tensors


@dataclass(frozen=True)
class Oracle:
    """An architecture's equations; each function takes the tensors and the settings."""

    embed: Callable[[Tensors, Any, Tensor, Tensor], Tensor]
    """tokens, positions -> h"""
    block: Callable[..., list[Tensor]]
    """h, a layer's tensors, settings, positions, see, memory, see_memory -> h after each sublayer;
    with `numbered` also `layer`, from 1"""
    memory: Callable[[Tensors, Any, Tensor], Tensor]
    """the encoder's last h -> what the decoder reads"""
    logits: Callable[[Tensors, Any, Tensor], Tensor]
    """the last h -> logits"""
    weights: Callable[[Tensors, Any], Tensors] = as_stored
    numbered: bool = False
    shifted: Callable[[Tensor, Tensor], Tensor] = lambda h, s: h
    """with token_shift: what becomes of e_t + gate s e_{t-1}, and of s; with bigram_rows: of
    h + s_2 x, and of s_2"""
    pair: Callable[[Tensor], Tensor] = lambda x: x
    """with bigram_rows: x = W_2 E_2[row] -> what is added, before s_2"""

    def stack_states(
        self,
        tensors: Tensors,
        s: Any,
        stack: str,
        tokens: Tensor,
        positions: Tensor,
        see: Tensor,
        memory: Tensor | None = None,
        see_memory: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Tensor]:
        """h [B, T, d] after the embedding and after each sublayer of "layers" or "encoder"."""
        w = self.weights(tensors, s)
        states = [self.embed(w, s, tokens, positions)]
        if getattr(s, "token_shift", False):
            earlier = basics.one_earlier(states[0], positions, documents)
            gate = 2 / (1 + torch.exp(-basics.directions(states[0]) @ w["w_shift"]))
            mixed = states[0] + gate[..., None] * w["s_shift"] * earlier
            states = [self.shifted(mixed, w["s_shift"])]
        if getattr(s, "bigram_rows", 0):
            row = basics.bigram_row(tokens, s.bigram_rows)
            x = self.pair(w["E_2"][row] @ w["W_2"].T)
            some = basics.one_earlier(torch.ones_like(x), positions, documents)
            states = [self.shifted(states[0] + w["s_2"] * x * some, w["s_2"])]
        for i in range(s.n_layers):
            number = {"layer": i + 1} if self.numbered else {}
            p = of_layer(w, i, stack)
            if "E_v" in p:  # value embeddings, [B, T, H_kv d_k]
                p["e_v"] = p["E_v"][tokens]
            if getattr(s, "key_offset", False):
                each = torch.eye(tokens.shape[1]).double().expand(len(tokens), -1, -1)
                p["earlier"] = basics.one_earlier(each, positions, documents)
            states += self.block(states[-1], p, s, positions, see, memory, see_memory, **number)
        return states

    def encode(
        self,
        tensors: Tensors,
        settings: Any,
        source: Tensor,
        source_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The memory [B, S, d] of `source` [B, S]; source_mask [B, S], True = a real token."""
        basics.require_double(tensors)
        if positions is None:
            positions = basics.positions_of(source, None)
        see = basics.visible_source(source, source_mask, settings.window)
        h = self.stack_states(tensors, settings, "encoder", source, positions, see)[-1]
        return self.memory(tensors, settings, h)

    def hidden_states(
        self,
        tensors: Tensors,
        settings: Any,
        tokens: Tensor,
        mask: Tensor | None = None,
        left_padding: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Tensor | None = None,
        source_mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Tensor]:
        """h [B, T, d] after the embedding and after each sublayer: 2L + 1, 3L + 1 with memory.

        See `basics.visible` for mask, left_padding, documents. memory and source_mask: `encode`'s
        result and argument, with seq2seq.
        """
        basics.require_double(tensors)
        basics.require_memory(settings.seq2seq, memory, documents)
        if positions is None:
            positions = basics.positions_of(tokens, left_padding)
        s = settings
        see = basics.visible(tokens, s.causal, mask, left_padding, s.window, documents)
        see_memory = None if memory is None else basics.visible_memory(tokens, memory, source_mask)
        return self.stack_states(
            tensors, s, "layers", tokens, positions, see, memory, see_memory, documents
        )

    def forward(
        self, tensors: Tensors, settings: Any, tokens: Tensor, *where: Any, **named: Any
    ) -> Tensor:
        """Logits [B, T, V]; the arguments are those of `hidden_states`."""
        h = self.hidden_states(tensors, settings, tokens, *where, **named)[-1]
        return self.logits(self.weights(tensors, settings), settings, h)

    def loss(
        self,
        tensors: Tensors,
        settings: Any,
        tokens: Tensor,
        targets: Tensor,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        label_smoothing: float = 0.0,
        **where: Tensor | None,
    ) -> Tensor:
        """Mean cross-entropy over the targets that are not -100; `where` as in `forward`.

        source and source_mask: as in `encode`, with seq2seq. label_smoothing:
        `basics.cross_entropy`.
        """
        if source is not None:
            where |= {"memory": self.encode(tensors, settings, source, source_mask)}
            where |= {"source_mask": source_mask}
        logits = self.forward(tensors, settings, tokens, **where)
        return basics.cross_entropy(logits, targets, label_smoothing)
