"""Loss, perplexity and bits per byte of an encoder–decoder on pairs of texts.

Scored are the tokens of the target and the separator that ends it, each predicted from the source
and from the target's tokens before it. So the loss is per target token, ends counted, and the bits
per byte are those of all targets' probability, their ends included, over their UTF-8 bytes.

A side of more than `context` tokens (the separator counted) is cut there, never left out: the
model sees the beginning of a source, and of a target its beginning is scored, with its tokens'
share of the bytes. `cut_sources` and `cut_targets` say how many.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from unitsphere.data.batch import Batch
from unitsphere.data.documents import TextPair
from unitsphere.data.pairs import Pair, Pairs, pair_batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.models.trunk import Transformer
from unitsphere.training.device import Precision
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.evaluate.text import Evaluation, evenly_spread, in_groups, score, summary


@dataclass(frozen=True)
class PairEvaluation(Evaluation):
    """A model's figures on pairs; bytes are those of the targets."""

    pairs: int = 0
    cut_sources: int = 0
    cut_targets: int = 0


def evaluate_pairs(
    model: Transformer,
    pairs: Iterable[Pair],
    separator: int,
    context: int,
    rows: int,
    precision: Precision = "fp32",
    between: Callable[[], None] = lambda: None,
    layout: Layout = SINGLE,
    lost: float = 0.0,
) -> PairEvaluation:
    """Score pairs, `rows` of them at once; `lost` is their tokenizer's `text_lost`.

    Raises UserError if there are none.
    """
    count = cut_sources = cut_targets = 0
    size = 0.0

    def counted() -> Iterator[Pair]:
        nonlocal count, cut_sources, cut_targets, size
        for pair in pairs:
            count += 1
            cut_sources += len(pair.source) + 1 > context
            cut_targets += len(pair.target) + 1 > context
            size += pair.target_bytes * min(1.0, context / max(len(pair.target), 1))
            yield pair

    batches = (cut_batch(some, separator, context) for some in in_groups(counted(), rows))
    totals = score(model, batches, True, precision, between, layout)
    if not count:
        raise UserError("there are no pairs to evaluate: the source holds none")
    found = summary(totals, round(size), True, lost)
    return PairEvaluation(
        **vars(found), pairs=count, cut_sources=cut_sources, cut_targets=cut_targets
    )


def evaluate_pair_split(
    model: Transformer,
    pairs: Pairs,
    context: int,
    rows: int,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
    between: Callable[[], None] = lambda: None,
    layout: Layout = SINGLE,
) -> PairEvaluation:
    """Score a prepared split; with `max_tokens` only as many pairs, spread evenly over it, as hold
    about that number of target tokens. `between` is called before each batch.
    """
    wanted = count = len(pairs)
    if max_tokens is not None:
        wanted = max(max_tokens * count // max(pairs.n_target_tokens, 1), 1)
    separator = pairs.shards.separator
    some = (pairs[i] for i in evenly_spread(count, wanted))
    lost = pairs.shards.text_lost
    return evaluate_pairs(model, some, separator, context, rows, precision, between, layout, lost)


def text_pairs(texts: Iterable[TextPair], tokenizer: Tokenizer) -> Iterator[Pair]:
    """Pairs of texts as tokens."""
    for source, target in texts:
        source_tokens, target_tokens = tokenizer.encode_batch([source, target])
        yield Pair(source_tokens, target_tokens, len(target.encode()))


def cut_batch(pairs: list[Pair], separator: int, context: int) -> Batch:
    """Pairs as rows as wide as the longest, each side cut at `context` tokens."""
    source = 1 + max(len(pair.source) for pair in pairs)
    target = 1 + max(len(pair.target) for pair in pairs)
    return pair_batch(pairs, separator, min(source, context), min(target, context))
