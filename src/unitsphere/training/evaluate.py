"""Loss, perplexity and bits per byte of a model on text or on prepared shards.

The text is one stream: a separator before each document. It is cut into windows of `context`
tokens that do not overlap, and each token is predicted from those before it in its window.
Separators are context but are not scored, so the bytes are exactly the UTF-8 bytes of the
text and a uniform model over bytes scores 8 bits per byte.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unitsphere.data.batches import IGNORED
from unitsphere.data.shards import Shards
from unitsphere.data.sources import Piece
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import Precision
from unitsphere.training.device import autocast


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a text: nats per token, and the text's size."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int


def evaluate(
    model: Transformer,
    documents: Iterable[str | Piece],
    tokenizer: Tokenizer,
    context: int,
    batch_rows: int,
    precision: Precision = "fp32",
) -> Evaluation:
    """Score `documents` in windows of `context` tokens, `batch_rows` of them at once.

    A str is a whole document; a `Piece` (`data.sources.read_documents`) is a stretch of one, so
    that a document of any size is never held as a whole. Raises UserError if there is no text.
    """
    size = 0

    def counted() -> Iterator[str | Piece]:
        nonlocal size
        for document in documents:
            text = document if isinstance(document, str) else document.text
            size += len(text.encode("utf-8"))
            yield document

    windows = stream_windows(counted(), tokenizer, context)
    nats, tokens = score(model, windows, tokenizer.separator, context, batch_rows, precision)
    return summary(nats, tokens, size)


def evaluate_shards(
    model: Transformer,
    shards: Shards,
    context: int,
    rows: int,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
) -> Evaluation:
    """Score a prepared split as `evaluate` scores text, `rows` windows at once.

    With `max_tokens` only as many windows as hold that number, spread evenly over the split;
    their bytes are then their tokens' share of the split's bytes.
    """
    starts = range(0, shards.n_tokens - 1, context)
    if max_tokens is not None:
        wanted = min(max(max_tokens // context, 1), len(starts))
        starts = [starts[i * len(starts) // wanted] for i in range(wanted)]
    windows = (shards[start : start + context + 1] for start in starts)
    nats, tokens = score(model, windows, shards.separator, context, rows, precision)
    share = tokens / (shards.n_tokens - shards.n_documents)
    return summary(nats, tokens, round(shards.n_bytes * share))


def summary(nats: float, tokens: int, size: int) -> Evaluation:
    """The means of a sum of losses over `tokens` tokens that stand for `size` bytes."""
    if not tokens:
        raise UserError("there is no text to evaluate: the source holds no tokens")
    loss = nats / tokens
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Evaluation(loss, perplexity, nats / math.log(2) / size, tokens, size)


def stream_windows(
    documents: Iterable[str | Piece], tokenizer: Tokenizer, context: int
) -> Iterator[np.ndarray]:
    """Windows of context+1 tokens, each beginning with the last token of the one before."""
    held, current = np.empty(0, np.int64), None
    for document in documents:
        text = document if isinstance(document, str) else document.text
        begins = isinstance(document, str) or document.document != current
        current = None if isinstance(document, str) else document.document
        new = [tokenizer.separator] * begins + tokenizer.encode(text)
        held = np.concatenate([held, np.asarray(new, np.int64)])
        whole = (len(held) - 1) // context
        yield from (held[i * context : (i + 1) * context + 1] for i in range(whole))
        held = held[whole * context :]
    if len(held) > 1:
        yield held


@torch.no_grad()
def score(
    model: Transformer,
    windows: Iterable[np.ndarray],
    separator: int,
    context: int,
    rows: int,
    precision: Precision,
) -> tuple[float, int]:
    """Sum of the losses in nats, and number of scored tokens, over all windows."""
    nats, tokens = 0.0, 0
    for inputs, targets in batches(windows, separator, context, rows):
        with autocast(model.device, precision):
            loss = model.loss(inputs.to(model.device), targets.to(model.device), "sum")
        nats += float(loss)
        tokens += int((targets != IGNORED).sum())
    return nats, tokens


def batches(
    windows: Iterable[np.ndarray], separator: int, context: int, rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets [up to rows, context] int64; separators and padding are not scored."""
    held: list[np.ndarray] = []
    for window in windows:
        held.append(window)
        if len(held) == rows:
            yield padded(held, separator, context)
            held = []
    if held:
        yield padded(held, separator, context)


def padded(windows: list[np.ndarray], separator: int, context: int) -> tuple[Tensor, Tensor]:
    """Windows of at most context+1 tokens as one batch."""
    inputs = torch.full((len(windows), context), separator, dtype=torch.int64)
    targets = torch.full((len(windows), context), IGNORED, dtype=torch.int64)
    for row, window in enumerate(windows):
        tokens = torch.from_numpy(window.astype(np.int64))
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = tokens[1:]
    return inputs, targets.masked_fill_(targets == separator, IGNORED)
