"""Targets that an encoder–decoder writes: the likeliest token at every step, or beam search.

In a beam search several of the targets that look best so far are followed at once. They are
ranked as in Wu et al. 2016 (GNMT, arXiv 1609.08144, eq. 14, without the coverage
penalty): s(Y) = log P(Y)/lp(Y) with lp(Y) = ((5 + |Y|)/6)^α. |Y| counts the separator at the end,
whose probability is a part of P(Y). Vaswani et al. 2017 (arXiv 1706.03762, §6.1) use α = 0.6 and a
beam of 4, the defaults here.

At each step the 2·beam best continuations of a source's prefixes are looked at. Those of the
first `beam` that end are finished targets; the best `beam` of those that do not end are followed.
A source is done when it has `beam` finished targets, or when nothing that is followed could still
beat the best of them.

Shapes: B sources that are not done, K prefixes each (the beam), V vocabulary entries, t tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from unitsphere.data.pairs import source_batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.inference.decode import check_length
from unitsphere.models.context import Cache, Memory
from unitsphere.models.trunk import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A target that a model wrote for a source."""

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
    """The likeliest next token at every step, for all sources (token ids) at once.

    A target ends at the separator, or after `max_tokens` tokens. Ids from `vocab_size` up
    are never written (a model's vocabulary is padded).
    """
    check_length(max_tokens)
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


def encode(model: Transformer, sources: Sequence[Sequence[int]], separator: int) -> Memory:
    """The encoder's output for sources of any lengths; the separator ends each."""
    rows = [np.asarray(source, np.int64) for source in sources]
    source_BS, mask_BS = source_batch(rows, separator)
    return model.encode(source_BS.to(model.device), mask_BS.to(model.device))


def next_log_probabilities(
    model: Transformer, last_B: Tensor, memory: Memory, cache: Cache
) -> Tensor:
    """log p of each next token after the cached ones and `last_B` [B]: [B, V], fp32 or wider."""
    logits_BV = model(last_B[:, None], cache=cache, memory=memory)[:, -1]
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|)/6)^α, by which the log probability of a target is divided."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_tokens: int,
    separator: int,
    beam: int = 4,
    alpha: float = 0.6,
    vocab_size: int | None = None,
) -> list[Hypothesis]:
    """The best target found for each source (token ids), by log P(Y)/lp(Y).

    alpha: of the length penalty; 0 ranks only by log P. A target ends at the separator, or after
    `max_tokens` tokens. Ids from `vocab_size` up are never written. Raises UserError for settings
    out of range.
    """
    check_length(max_tokens)
    if beam < 1 or not 0 <= alpha < float("inf"):
        raise UserError(f"beam must be 1 or more, and length_penalty 0 or more: {beam} and {alpha}")
    if not sources:
        return []
    search = _Search(model, sources, max_tokens, separator, beam, alpha, vocab_size)
    return search.run()


@dataclass
class _Finished:
    """The best finished target of a source, and how many there are."""

    best: Hypothesis
    score: float = -float("inf")
    count: int = 0

    def add(self, hypothesis: Hypothesis, score: float) -> None:
        self.count += 1
        if score > self.score:
            self.best, self.score = hypothesis, score


class _Search:
    """The prefixes that are followed, and the targets that are finished."""

    def __init__(
        self,
        model: Transformer,
        sources: Sequence[Sequence[int]],
        max_tokens: int,
        separator: int,
        beam: int,
        alpha: float,
        vocab_size: int | None,
    ) -> None:
        self.model, self.max_tokens, self.separator = model, max_tokens, separator
        self.beam, self.alpha, self.vocab_size = beam, alpha, vocab_size
        n, device = len(sources), model.device
        self.finished = [_Finished(Hypothesis([], -float("inf"))) for _ in sources]
        self.open = list(range(n))  # which sources are not done: the B rows of what follows
        self.tokens_BKt = torch.empty(n, beam, 0, dtype=torch.int64, device=device)
        wide = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        self.totals_BK = torch.full((n, beam), -float("inf"), dtype=wide, device=device)
        self.totals_BK[:, 0] = 0.0  # All prefixes are empty at first: one stands for them.
        rows = torch.arange(n, device=device).repeat_interleave(beam)
        self.memory = encode(model, sources, separator).select(rows)
        self.cache = model.new_cache(n * beam, max_tokens + 1)

    @torch.no_grad()
    def run(self) -> list[Hypothesis]:
        """The best target of each source."""
        for _ in range(self.max_tokens):
            self.extend(self.log_probabilities())
            if not self.open:
                break
        else:
            self.end(self.log_probabilities())
        return [found.best for found in self.finished]

    def log_probabilities(self) -> Tensor:
        """log p of each next token, [B, K, V]."""
        length = self.tokens_BKt.shape[-1]
        rows = len(self.open) * self.beam
        if length:
            last = self.tokens_BKt[:, :, -1].flatten()
        else:
            last = torch.full((rows,), self.separator, device=self.model.device)
        log_p = next_log_probabilities(self.model, last, self.memory, self.cache)
        return log_p[:, : self.vocab_size].unflatten(0, (-1, self.beam))

    def extend(self, log_p_BKV: Tensor) -> None:
        """Finish the prefixes that end among the best, and follow the best that do not."""
        vocabulary = log_p_BKV.shape[-1]
        totals = (self.totals_BK[:, :, None] + log_p_BKV).flatten(1)
        totals, place = totals.topk(min(2 * self.beam, totals.shape[1]))
        origin, token = place // vocabulary, place % vocabulary
        ends = token == self.separator
        self.finish(totals[:, : self.beam], origin, ends)
        totals, order = totals.masked_fill(ends, -float("inf")).topk(self.beam)
        origin, token = origin.gather(1, order), token.gather(1, order)
        prefixes = self.tokens_BKt.gather(
            1, origin[:, :, None].expand(-1, -1, self.tokens_BKt.shape[-1])
        )
        self.totals_BK = totals
        self.tokens_BKt = torch.cat([prefixes, token[:, :, None]], -1)
        self.keep(origin)

    def finish(self, totals: Tensor, origin: Tensor, ends: Tensor) -> None:
        """Keep those of the continuations [B, K] that end; `origin` is the prefix of each."""
        length = self.tokens_BKt.shape[-1] + 1
        penalty = length_penalty(length, self.alpha)
        real = ends[:, : totals.shape[1]] & totals.isfinite()
        for row, place in real.nonzero().tolist():
            total = float(totals[row, place])
            tokens = self.tokens_BKt[row, origin[row, place]].tolist()
            self.finished[self.open[row]].add(Hypothesis(tokens, total), total / penalty)

    def keep(self, origin_BK: Tensor) -> None:
        """Drop the sources that are done; reorder cache and memory as the prefixes."""
        best = self.totals_BK[:, 0].tolist()
        left = [row for row, source in enumerate(self.open) if not self.done(source, best[row])]
        index = torch.tensor(left, dtype=torch.int64, device=origin_BK.device)
        rows = (index[:, None] * self.beam + origin_BK[index]).flatten()
        self.cache.reorder(rows)
        self.memory = self.memory.select(rows)
        self.open = [self.open[row] for row in left]
        self.tokens_BKt, self.totals_BK = self.tokens_BKt[index], self.totals_BK[index]

    def done(self, source: int, best: float) -> bool:
        """Whether a source needs no more steps; `best` is the highest log P that is followed.

        A longer target has no higher log P, and lp is largest for the longest.
        """
        found = self.finished[source]
        bound = best / length_penalty(self.max_tokens + 1, self.alpha)
        return found.count >= self.beam or found.score >= bound

    def end(self, log_p_BKV: Tensor) -> None:
        """End every prefix where it is."""
        totals = self.totals_BK + log_p_BKV[:, :, self.separator]
        origin = torch.arange(self.beam, device=totals.device).expand_as(totals)
        self.finish(totals, origin, torch.ones_like(totals, dtype=torch.bool))


@dataclass(frozen=True)
class Search:
    """How targets are searched: the likeliest token at each step, or with a beam."""

    max_tokens: int
    beam: int = 1
    length_penalty: float = 0.6

    def __call__(
        self, model: Transformer, tokenizer: Tokenizer, sources: Sequence[Sequence[int]]
    ) -> list[Hypothesis]:
        """A target for each source (token ids), all at once."""
        separator, size = tokenizer.separator, tokenizer.vocab_size
        if self.beam == 1:
            return greedy(model, sources, self.max_tokens, separator, size)
        return beam_search(
            model, sources, self.max_tokens, separator, self.beam, self.length_penalty, size
        )


@dataclass(frozen=True)
class Answer:
    """The target that a model wrote for one source."""

    prompt: str
    text: str
    prompt_tokens: int
    """Tokens of the source that the model saw, with the separator at its end."""
    cut: bool
    """Whether the source was longer than that."""
    tokens: int
    """Tokens written, without the separator at the end."""
    stopped: bool
    """Whether the model ended the target; otherwise it used all `max_tokens`."""
    log_probability: float
    """In nats, of the target and its end."""


def answer(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    search: Search,
    context: int,
) -> list[Answer]:
    """The targets of texts, all at once; a text is cut at `context` tokens.

    Raises UserError for an empty text.
    """
    if not all(prompt.strip() for prompt in prompts):
        raise UserError("an encoder-decoder needs a source to write a target for: give a prompt")
    whole = [tokenizer.encode(prompt) for prompt in prompts]
    sources = [source[: context - 1] for source in whole]
    return [
        Answer(
            prompt=prompt,
            text=tokenizer.decode(found.tokens),
            prompt_tokens=len(source) + 1,
            cut=len(source) < len(tokens),
            tokens=len(found.tokens),
            stopped=len(found.tokens) < search.max_tokens,
            log_probability=found.log_probability,
        )
        for prompt, tokens, source, found in zip(
            prompts, whole, sources, search(model, tokenizer, sources), strict=True
        )
    ]


def write_targets(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: Iterable[Sequence[int]],
    search: Search,
    context: int,
    rows: int,
) -> Iterator[str]:
    """The targets of any number of sources (token ids) in order, `rows` of them at once.

    A source is cut at `context` tokens, with the separator at its end.
    """
    waiting = iter(sources)
    while some := list(islice(waiting, rows)):
        cut = [source[: context - 1] for source in some]
        yield from (tokenizer.decode(one.tokens) for one in search(model, tokenizer, cut))
