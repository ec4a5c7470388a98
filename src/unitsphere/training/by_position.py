"""Loss by context length and by position in the context, in bounded memory (nGPT A.8, Figure 14).

Every context length is scored on the same tokens: stretches of documents as long as the longest
context, cut into windows of each. So two lengths differ in what a token is predicted from, and in
nothing else. A window goes through the model in chunks, the keys and values of those before in
the cache: only the cache grows with the context, and the mask of one chunk.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.data.batches import DocumentTokens, ShardTokens, TextTokens, stretches
from unitsphere.data.documents import read_documents
from unitsphere.data.prepare import scored_split
from unitsphere.data.sources import scored_files
from unitsphere.errors import UserError
from unitsphere.models.trunk import Transformer
from unitsphere.training.evaluate.text import evaluating, perplexity
from unitsphere.training.load import LoadedRun

CHUNK = 1024
"""Tokens that go through the model at a time, unless the caller says otherwise."""


@dataclass(frozen=True)
class Span:
    """The mean over tokens that are predicted from `first` to `last` tokens before them."""

    first: int
    last: int
    tokens: int
    loss: float
    perplexity: float


@dataclass(frozen=True)
class ContextLoss:
    """Losses with contexts of one length: nats per token, over all positions and by position.

    text_lost is the tokenizer's; where it is above 0 there are no bits_per_byte.
    """

    context: int
    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    bytes: int
    by_position: list[Span] = field(repr=False)
    text_lost: float = 0.0

    def record(self) -> dict[str, Any]:
        """The figures for JSON; `text_lost` only where it says something."""
        named = dataclasses.asdict(self)
        return named if self.text_lost else {k: named[k] for k in named if k != "text_lost"}


def check_causal(objective: str) -> None:
    """Raise UserError unless a model of this objective predicts each token from those before it."""
    if objective != "clm":
        raise UserError(
            f"a model with the objective {objective} has no losses by position: the objective must "
            "be clm"
        )


def losses_by_position(
    model: Transformer,
    documents: DocumentTokens,
    separator: int,
    contexts: Sequence[int],
    chunk: int = CHUNK,
    per_document: int | None = None,
    after: Callable[[int], object] = lambda tokens: None,
) -> dict[int, ContextLoss]:
    """Context length -> losses, all on the same tokens.

    Each context divides the longest. `chunk` tokens go through the model at a time; of each
    document only stretches within its first `per_document` tokens are scored, if that is given.
    `after(n)` hears that n tokens have been scored at every context. `bytes` are those of the
    scored tokens' text. Raises UserError for a model that is not causal, for contexts that do
    not divide the longest, and if no document is long enough.
    """
    longest = check_contexts(contexts)
    check_causal(model.objective)
    sums = {context: np.zeros(context) for context in contexts}
    scored = size = 0
    with evaluating(model):
        for stretch in stretches(documents, separator, longest, per_document):
            tokens = torch.from_numpy(stretch).to(model.device)
            for context, total in sums.items():
                total += sum_by_position(model, tokens, context, chunk)
            scored += longest
            size += documents.tokenizer.size(stretch[1:].tolist())
            after(scored)
    if not scored:
        raise UserError(
            f"no document has {longest:,} tokens{within(per_document)}: give smaller contexts, or "
            "longer documents"
        )
    lost = documents.text_lost
    return {context: summarised(total, scored, size, lost) for context, total in sums.items()}


def within(per_document: int | None) -> str:
    """How a message says that only the begin of documents counts."""
    return "" if per_document is None else f" within its first {per_document:,}"


def check_contexts(contexts: Sequence[int]) -> int:
    """The longest context; a `UserError` unless the others divide it."""
    longest = max(contexts)
    odd = [context for context in contexts if longest % context]
    if odd:
        raise UserError(
            f"by position every context is scored on the same tokens, so each must divide the "
            f"longest: {odd[0]} does not divide {longest}; take powers of two"
        )
    return longest


def sum_by_position(model: Transformer, tokens: Tensor, context: int, chunk: int) -> np.ndarray:
    """The losses of a stretch in windows of `context` tokens, summed over windows: [context]."""
    inputs = tokens[:-1].view(-1, context)
    targets = tokens[1:].view(-1, context)
    total = np.zeros(context)
    rows = max(chunk // context, 1)
    for begin in range(0, len(inputs), rows):
        part = slice(begin, begin + rows)
        found = token_losses(model, inputs[part], targets[part], chunk)
        total += found.double().sum(0).cpu().numpy()
    return total


@torch.no_grad()
def token_losses(model: Transformer, inputs: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The loss of each target in nats, [rows, time] in fp32 or wider, `chunk` columns at a time.

    inputs, targets: int64 [rows, time], whose losses are those of one pass over all of it.
    """
    rows, time = inputs.shape
    cache = None if time <= chunk else model.new_cache(rows, time)
    parts = []
    for begin in range(0, time, chunk):
        part = slice(begin, begin + chunk)
        logits = model(inputs[:, part], cache=cache)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(F.cross_entropy(wide.mT, targets[:, part], reduction="none"))
    return torch.cat(parts, 1)


def summarised(total: np.ndarray, scored: int, size: int, lost: float) -> ContextLoss:
    """The means of losses summed by position, over `scored` tokens of a text of `size` bytes."""
    context, nats = len(total), float(total.sum())
    windows = scored // context
    spans = [
        span(float(total[first - 1 : last].sum()), first, last, windows)
        for first, last in edges(context)
    ]
    loss = nats / scored
    return ContextLoss(
        context=context,
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=None if lost else nats / math.log(2) / size,
        tokens=scored,
        bytes=size,
        by_position=spans,
        text_lost=lost,
    )


def span(nats: float, first: int, last: int, windows: int) -> Span:
    """The mean over positions `first` to `last`, counted from 1, of each window."""
    tokens = (last - first + 1) * windows
    return Span(first, last, tokens, nats / tokens, perplexity(nats / tokens))


def edges(context: int) -> list[tuple[int, int]]:
    """First and last position of each span, counted from 1: two spans to a doubling.

    They end at 1, 2, 3, 4, 6, 8, 12, 16, …, so that every power of two ends one.
    """
    ends = {1}
    power = 1
    while power < context:
        ends |= {power + power // 2, 2 * power} if power > 1 else {2}
        power *= 2
    last = sorted(end for end in ends | {context} if end <= context)
    return [(before + 1, end) for before, end in zip([0, *last], last, strict=False)]


@contextmanager
def open_documents(
    run: LoadedRun, data: str | None, field: str
) -> Iterator[Callable[[], DocumentTokens]]:
    """A source of documents that can be asked for again and again; data None: validation.

    Raises UserError for a run that is not causal, an empty text, and a split that another tokenizer
    made.
    """
    check_causal(run.config.objective)
    shards = scored_split(data, run.config.data)
    if shards is not None:
        shards.check_tokenizer(run.tokenizer)
        yield lambda: ShardTokens(shards)
        return
    assert data is not None  # that means a split
    with scored_files(data) as files:
        yield lambda: TextTokens(read_documents(files, field), run.tokenizer)
