"""Loss, perplexity, and bits per byte or accuracy of a model on text or on prepared shards.

The text is one stream: a separator before each document. It is cut into windows as the objective
asks (`data.batch.Form`), in their order; separators are context but are not scored.

- Causal: each token is predicted from those before it in its window, so the bytes are exactly the
  UTF-8 bytes of the text and a uniform model over bytes scores 8 bits per byte.
- Masked: the hidden tokens are predicted from all the others. Each window hides the same tokens
  each time (`data.batch.EVALUATION_SEED`). The losses do not add up to a likelihood of the text:
  there are no bits per byte, and the perplexity is a pseudo-perplexity, to be compared only with
  that of models that hide as many tokens. Accuracy is the share of the hidden tokens whose
  likeliest guess is right.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from unitsphere.data.batch import (
    EVALUATION_SEED,
    IGNORED,
    Batch,
    Form,
    Masked,
    NextToken,
    Window,
    count_windows,
)
from unitsphere.data.batches import window
from unitsphere.data.documents import Piece, read_documents
from unitsphere.data.prepare import scored_split
from unitsphere.data.shards import Shards, is_prepared
from unitsphere.data.sources import scored_files
from unitsphere.data.tokenizer import STRETCH, STRETCHES, Sample, Tokenizer, text_lost
from unitsphere.errors import UserError
from unitsphere.models.trunk import Transformer
from unitsphere.ops.loss import cross_entropy
from unitsphere.training.config import RunConfig
from unitsphere.training.device import Precision, autocast
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.load import LoadedRun

Row = TypeVar("Row")


@dataclass(frozen=True)
class Evaluation:
    """Loss of a model on a text in nats per scored token, and the text's size.

    `tokens` counts those that were scored, `bytes` the text's. Causal models have
    bits_per_byte, masked ones accuracy. text_lost is the tokenizer's (`data.tokenizer.text_lost`);
    where it is above 0 there are no bits_per_byte.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    bytes: int
    accuracy: float | None = None
    text_lost: float = 0.0

    def record(self) -> dict[str, float]:
        """The figures of a validation as they stand in metrics.jsonl."""
        found = {
            "val_loss": self.loss,
            "val_bits_per_byte": self.bits_per_byte,
            "val_accuracy": self.accuracy,
            "val_text_lost": self.text_lost or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class Totals:
    """Sums over batches: losses in nats, scored tokens, and right guesses where those count."""

    nats: float = 0.0
    tokens: int = 0
    right: int = 0


def evaluate(
    model: Transformer,
    documents: Iterable[str | Piece],
    tokenizer: Tokenizer,
    form: Form,
    rows: int,
    precision: Precision = "fp32",
) -> Evaluation:
    """Score `documents` in the windows of `form`, `rows` of them at once.

    A str is a whole document; a `Piece` (`data.documents.read_documents`) is a stretch of one, so
    that a document of any size is never held as a whole. Raises UserError if there is no text.
    """
    size = 0
    sample = Sample()

    def counted() -> Iterator[str | Piece]:
        nonlocal size
        for document in documents:
            text = document if isinstance(document, str) else document.text
            size += len(text.encode("utf-8"))
            sample.add(text[: STRETCH * STRETCHES])
            yield document

    windows = stream_windows(counted(), tokenizer, form)
    first = list(islice(windows, 1))
    form = fitting(form, first, model)
    batches = map(form.batch, in_groups(chain(first, windows), rows))
    totals = score(model, batches, form.likelihood, precision)
    return summary(totals, size, form.likelihood, text_lost(tokenizer, sample.texts))


def fitting(form: Form, first: Sequence[Window], model: Transformer) -> Form:
    """The form without padding where the whole text is one window that is shorter than the context.

    A causal model's figures do not depend on what is after the text. One with learned positions
    refuses a context that has more of them, whatever the text.
    """
    if not first or not isinstance(form, NextToken) or model.max_length is not None:
        return form
    return replace(form, context=min(form.context, len(first[0].tokens) - form.overlap))


def evaluate_shards(
    model: Transformer,
    shards: Shards,
    form: Form,
    rows: int,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
    between: Callable[[], None] = lambda: None,
    layout: Layout = SINGLE,
) -> Evaluation:
    """Score a prepared split as `evaluate` scores text, `rows` windows at once.

    `between` is called before each batch.

    With `max_tokens` only as many windows as hold that number, spread evenly over the split;
    their bytes are then their share of the split's bytes.
    """
    count = count_windows(shards.n_tokens, form)
    wanted = count if max_tokens is None else max(max_tokens // form.stride, 1)
    chosen = evenly_spread(count, wanted)
    batches = map(form.batch, in_groups((window(shards, form, index) for index in chosen), rows))
    totals = score(model, batches, form.likelihood, precision, between, layout)
    text_tokens = shards.n_tokens - shards.n_documents
    share = totals.tokens / text_tokens if form.likelihood else len(chosen) / count
    return summary(totals, round(shards.n_bytes * share), form.likelihood, shards.text_lost)


def perplexity(loss: float) -> float:
    """e^loss; infinity where a float holds no more."""
    return math.exp(loss) if loss < 700 else math.inf


def summary(totals: Totals, size: int, likelihood: bool, lost: float = 0.0) -> Evaluation:
    """The means of sums over the scored tokens of a text of `size` bytes.

    lost: the tokenizer's `text_lost`.
    """
    if not totals.tokens:
        raise UserError("there is no text to evaluate: the source holds no tokens")
    loss = totals.nats / totals.tokens
    return Evaluation(
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=totals.nats / math.log(2) / size if likelihood and not lost else None,
        tokens=totals.tokens,
        bytes=size,
        accuracy=None if likelihood else totals.right / totals.tokens,
        text_lost=lost,
    )


def stream_windows(
    documents: Iterable[str | Piece], tokenizer: Tokenizer, form: Form
) -> Iterator[Window]:
    """The windows of the documents' stream, as its tokens come in."""
    held, current, index = np.empty(0, np.int64), None, 0
    for document in documents:
        text = document if isinstance(document, str) else document.text
        begins = isinstance(document, str) or document.document != current
        current = None if isinstance(document, str) else document.document
        new = [tokenizer.separator] * begins + tokenizer.encode(text)
        held = np.concatenate([held, np.asarray(new, np.int64)])
        whole = max(len(held) - form.overlap, 0) // form.stride
        for start in range(0, whole * form.stride, form.stride):
            yield Window(held[start : start + form.stride + form.overlap], index)
            index += 1
        held = held[whole * form.stride :]
    if len(held) > form.overlap:
        yield Window(held, index)


def in_groups(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """The rows in lists of up to `most`."""
    waiting = iter(rows)
    while some := list(islice(waiting, most)):
        yield some


@torch.no_grad()
def score(
    model: Transformer,
    batches: Iterable[Batch],
    likelihood: bool,
    precision: Precision,
    between: Callable[[], None] = lambda: None,
    layout: Layout = SINGLE,
) -> Totals:
    """Sums over all batches, as an evaluating model scores them; each process takes some rows.

    `between` is called before each batch.
    """
    totals = Totals()
    with evaluating(model):
        for batch in (local_rows(batch, layout) for batch in batches):
            between()
            here = batch.to(model.device)
            with autocast(model.device, precision):
                loss, right = losses(model, here) if likelihood else guesses(model, here)
            totals.nats += float(loss)
            totals.right += int(right)
            totals.tokens += batch.scored
    return sum_totals(totals, layout)


def local_rows(batch: Batch, layout: Layout) -> Batch:
    """This process's rows of a batch, near enough equally many; at least one, if need be unscored.

    So all processes call the model equally often: what they share in it needs them all.
    """
    parts, rank = layout.degrees.data, layout.data_rank
    if parts == 1:
        return batch
    first, end = rank * len(batch) // parts, (rank + 1) * len(batch) // parts
    if first < end:
        return batch.take(first, end)
    one = batch.take(0, 1)
    return replace(one, targets=torch.full_like(one.targets, IGNORED))


def sum_totals(totals: Totals, layout: Layout) -> Totals:
    """The sums over all processes."""
    if layout.degrees.data == 1:
        return totals
    own = torch.tensor([totals.nats, totals.tokens, totals.right], dtype=torch.float64)
    nats, tokens, right = layout.sum_(own).tolist()
    return Totals(nats, round(tokens), round(right))


def losses(model: Transformer, batch: Batch) -> tuple[Tensor, int]:
    """Sum of a batch's losses; right guesses are not counted."""
    return model.loss(batch.inputs, batch.targets, "sum", **batch.keywords()), 0


def guesses(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sum of a batch's losses, and how often the likeliest token is the target."""
    logits = model(batch.inputs, **batch.keywords())
    right = (logits.argmax(-1) == batch.targets).sum()  # no token is IGNORED, so that never counts
    return cross_entropy(logits, batch.targets, "sum"), right


@contextmanager
def evaluating(model: Transformer) -> Iterator[None]:
    """The model without dropout and the like; afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def evenly_spread(count: int, wanted: int) -> list[int]:
    """`wanted` of the numbers below `count`, evenly spread; all of them if there are fewer."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def window_form(
    config: RunConfig, tokenizer: Tokenizer, context: int, training: bool = False
) -> Form:
    """How windows of `context` tokens become a run's batches, to score it or to train it on."""
    separator = tokenizer.separator
    if config.objective == "mlm":
        seed = config.train.seed if training else EVALUATION_SEED
        return Masked(context, separator, tokenizer.vocab_size, config.data.mask, seed)
    return NextToken(context, separator, training, apart=config.data.document_mask)


def batch_rows(config: RunConfig, context: int) -> int:
    """Rows of `context` tokens that are about as large as a batch of the training."""
    train = config.train
    micro = train.micro_batch and train.micro_batch * config.data.context
    return max((micro or train.batch_tokens) // context, 1)


Scorer = Callable[[Transformer, int], Evaluation]
"""Model, tokens of context -> its figures."""


@contextmanager
def scorers(
    data: str | None, field: str, max_tokens: int | None = None
) -> Iterator[Callable[[LoadedRun], Scorer]]:
    """Within: run -> what scores its model on the text `data`, or on a validation split, in fp32.

    The split is that of a prepared folder, or without `data` the run's own; with `max_tokens` only
    as much of it is scored. Raises UserError for an empty text or split, and for a split that
    another tokenizer made.
    """
    with nullcontext([]) if data is None or is_prepared(data) else scored_files(data) as files:

        def scorer(run: LoadedRun) -> Scorer:
            def form(context: int) -> Form:
                return window_form(run.config, run.tokenizer, context)

            shards = scored_split(data, run.config.data)
            if shards is None:
                return lambda model, context: evaluate(
                    model,
                    read_documents(files, field),
                    run.tokenizer,
                    form(context),
                    batch_rows(run.config, context),
                )
            shards.check_tokenizer(run.tokenizer)
            return lambda model, context: evaluate_shards(
                model, shards, form(context), batch_rows(run.config, context), max_tokens
            )

        yield scorer
