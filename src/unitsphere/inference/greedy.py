"""The likeliest token at every step, from an encoder–decoder.

Shapes: B sources, V vocabulary entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unitsphere.data.pairs import source_batch
from unitsphere.errors import UserError
from unitsphere.models.context import Cache, Memory
from unitsphere.models.trunk import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A target that a model made of a source."""

    tokens: list[int]
    """Without the separator that ends them."""
    log_probability: float
    """In nats, of the tokens and of the separator after them."""


@torch.no_grad()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_tokens: int,
    separator: int,
    vocab_size: int | None = None,
) -> list[Hypothesis]:
    """The likeliest next token, again and again, for all sources (token ids) at once.

    A target ends at the separator, or is ended after `max_tokens` tokens. Ids from `vocab_size` on
    are never written (a model's vocabulary is padded).
    """
    check_decoding(max_tokens)
    if not sources:
        return []
    memory = encode(model, sources, separator)
    cache = model.new_cache(len(sources), max_tokens + 1)
    tokens: list[list[int]] = [[] for _ in sources]
    totals = [0.0 for _ in sources]
    running = set(range(len(sources)))
    end_B = last_B = torch.full((len(sources),), separator, device=model.device)
    for step in range(max_tokens + 1):
        log_p_BV = next_log_probabilities(model, last_B, memory, cache)[:, :vocab_size]
        last_B = log_p_BV.argmax(-1) if step < max_tokens else end_B
        chosen = log_p_BV.gather(-1, last_B[:, None])[:, 0].tolist()
        for row, token in enumerate(last_B.tolist()):
            if row not in running:
                continue
            totals[row] += chosen[row]
            if token == separator:
                running.discard(row)
            else:
                tokens[row].append(token)
        if not running:
            break
    return [Hypothesis(*found) for found in zip(tokens, totals, strict=True)]


def check_decoding(max_tokens: int) -> None:
    """Raise a `UserError` for a target without a token."""
    if max_tokens < 1:
        raise UserError(f"max_tokens must be 1 or more, not {max_tokens}")


def encode(model: Transformer, sources: Sequence[Sequence[int]], separator: int) -> Memory:
    """What the decoder looks at for sources of any lengths, each ended with the separator."""
    rows = [np.asarray(source, np.int64) for source in sources]
    source_BS, mask_BS = source_batch(rows, separator)
    return model.encode(source_BS.to(model.device), mask_BS.to(model.device))


def next_log_probabilities(
    model: Transformer, last_B: Tensor, memory: Memory, cache: Cache
) -> Tensor:
    """log p of each next token after the cached ones and `last_B` [B]: [B, V], fp32 or wider."""
    logits_BV = model(last_B[:, None], cache=cache, memory=memory)[:, -1]
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
