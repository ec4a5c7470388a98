"""What a run reads: batches to learn from, a way to be validated, and the tokenizer behind both.

`open_corpus` opens them. `given_rows` takes rows of any other data in the same form; `replay` shows
the rows of one of the run's batches.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch

from unitsphere.data.batch import IGNORED, Batch, Form, count_windows
from unitsphere.data.batches import Batches, ByStep, window
from unitsphere.data.config import DataConfig
from unitsphere.data.documents import PairFields, read_documents, read_text_pairs
from unitsphere.data.pairs import PairBatches, Pairs
from unitsphere.data.prepare import prepared, scored_split
from unitsphere.data.shards import Shards, is_prepared
from unitsphere.data.sources import source_files
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.training.checkpoint.store import load_state
from unitsphere.training.config import RunConfig
from unitsphere.training.evaluate.pairs import cut_batch, evaluate_pair_split, text_pairs
from unitsphere.training.evaluate.text import (
    Evaluation,
    evaluate_shards,
    evaluating,
    evenly_spread,
    stream_windows,
    window_form,
)
from unitsphere.training.folder import check_own_data, run_and_checkpoint
from unitsphere.training.load import load_run, pinned

Found = TypeVar("Found")

EXAMPLES = 3
"""Validation pairs that are shown."""


@dataclass(frozen=True)
class Corpus:
    """A run's data; `example` is some rows of what it is validated on, shown in samples.txt.

    `validate(model, precision=…, between=…, layout=…)` scores a model on the validation data, each
    time the same way; `between` is called before each batch.

    `epoch` is how many rows `batches` reads before the first is read again. `validation_rows` gives
    that many rows of what it is validated on, evenly spread; fewer if there are fewer.
    `fingerprint` is of its tokens, `input` of what they were made from.
    """

    batches: ByStep
    epoch: int
    validate: Callable[..., Evaluation]
    example: Batch
    validation_rows: Callable[[int], Batch]
    tokenizer: Tokenizer
    fingerprint: str
    input: str


def open_corpus(config: RunConfig) -> Corpus:
    """Open the run's data, preparing them first unless that has been done.

    Raises UserError for a source that cannot be used, shards that were changed, a tokenizer that
    is not theirs, or a model whose vocabulary is too small for it.
    """
    return open_pairs(config) if config.objective == "seq2seq" else open_stream(config)


def open_stream(config: RunConfig) -> Corpus:
    """Text as one stream of tokens: causal and masked language modelling."""
    data, train = config.data, config.train
    training, validation = open_splits(config)
    if validation.n_tokens < 2 and data.validation is not None:
        raise UserError(f"{data.validation} has no text to validate on: name another file")
    if validation.n_tokens < 2:
        raise UserError(nothing_held_out(data, "text"))
    tokenizer = training.tokenizer()
    scored = window_form(config, tokenizer, data.context)
    trained = window_form(config, tokenizer, data.context, training=True)
    batches = Batches(training, trained, config.rows, train.seed)
    return Corpus(
        batches=batches,
        epoch=batches.n_windows,
        validate=partial(
            evaluate_shards,
            shards=validation,
            form=scored,
            rows=train.micro_batch or config.rows,
            max_tokens=train.eval_tokens,
        ),
        example=scored.batch([window(validation, scored, 0)]),
        validation_rows=partial(spread_rows, validation, scored),
        tokenizer=tokenizer,
        fingerprint=f"{training.fingerprint} {validation.fingerprint}",
        input=training.input,
    )


def spread_rows(shards: Shards, form: Form, count: int) -> Batch:
    """Up to `count` rows of a split, evenly spread."""
    places = evenly_spread(count_windows(shards.n_tokens, form), count)
    return form.batch([window(shards, form, place) for place in places])


def open_pairs(config: RunConfig) -> Corpus:
    """Sources and their targets: sequence to sequence. A batch has batch_tokens/context pairs."""
    data, train = config.data, config.train
    training, validation = open_splits(config, pairs=True)
    held_out = Pairs(validation)
    if not len(held_out):
        raise UserError(nothing_held_out(data, "pairs"))
    pairs = PairBatches(Pairs(training), config.rows, data.context, train.seed)
    say_what_is_long(pairs, held_out)
    return Corpus(
        batches=pairs,
        epoch=len(pairs),
        validate=partial(
            evaluate_pair_split,
            pairs=held_out,
            context=data.context,
            rows=train.micro_batch or config.rows,
            max_tokens=train.eval_tokens,
        ),
        example=cut_batch(list(islice(held_out, EXAMPLES)), training.separator, data.context),
        validation_rows=lambda n: cut_batch(
            [held_out[i] for i in evenly_spread(len(held_out), n)], training.separator, data.context
        ),
        tokenizer=training.tokenizer(),
        fingerprint=f"{training.fingerprint} {validation.fingerprint}",
        input=training.input,
    )


def epoch_tokens(config: RunConfig) -> int:
    """Training tokens, as a budget counts them, of all that is read before the first comes again.

    Of pairs each counts as data.context, however short it is.
    """
    pairs, context = config.objective == "seq2seq", config.data.context
    training = Shards.open(prepared(config.data, pairs=pairs), "train")
    if not pairs:
        return training.n_tokens
    return len(PairBatches(Pairs(training), config.rows, context, config.train.seed)) * context


def nothing_held_out(data: DataConfig, what: str) -> str:
    """What to do about a source without `what` for validation."""
    if is_prepared(data.source):  # what it holds out was decided there
        todo = f"prepare it again with a larger --val_fraction, --validation FILE, or more {what}"
    else:
        todo = (
            f"raise data.val_fraction (now {data.val_fraction}), give data.validation, or use "
            f"more {what}"
        )
    return f"{data.source} has no {what} for validation: {todo}"


def say_what_is_long(training: PairBatches, validation: Pairs) -> None:
    """A line on stderr about pairs with a longer side than data.context, if there are any."""
    cut = validation.longer_than(training.context)
    if training.left_out or cut:
        print(
            f"longer than data.context {training.context}: {training.left_out:,} of "
            f"{len(training.pairs):,} training pairs, which are left out, and {cut:,} of "
            f"{len(validation):,} validation pairs, which are cut",
            file=sys.stderr,
        )


def open_splits(config: RunConfig, pairs: bool = False) -> tuple[Shards, Shards]:
    """The shards to train on and those to validate on, which the model's vocabulary fits."""
    folder = prepared(config.data, pairs=pairs)
    training, validation = Shards.open(folder, "train"), Shards.open(folder, "val")
    if config.data.verify:
        training.verify()
        validation.verify()
    check_vocabulary(config, training.vocab_size)
    return training, validation


def check_vocabulary(config: RunConfig, tokenizer_size: int) -> None:
    """Raise UserError if the model has fewer ids than the data."""
    extra = config.special_ids
    if config.model.vocab_size < tokenizer_size + extra:
        needs = "the tokenizer's" if not extra else "the tokenizer's with the mask token,"
        raise UserError(
            f"model.vocab_size {config.model.vocab_size} is smaller than {needs} "
            f"{tokenizer_size + extra}: leave it out, or make it at least that"
        )


def given_rows(config: RunConfig, tokenizer: Tokenizer, data: str, count: int) -> Batch:
    """Up to `count` rows of `data` as a run is validated: the first of a text, spread over a split.

    Nothing is written. Raises UserError if there is none.
    """
    if config.objective == "seq2seq":
        return given_pairs(config, tokenizer, data, count)
    form = window_form(config, tokenizer, config.data.context)
    shards = scored_split(data, config.data)
    if shards is not None:
        shards.check_tokenizer(tokenizer)
        return spread_rows(shards, form, count)
    with source_files(data) as files:
        documents = read_documents(files, config.data.field)
        return form.batch(first_of(stream_windows(documents, tokenizer, form), count, data))


def given_pairs(config: RunConfig, tokenizer: Tokenizer, data: str, count: int) -> Batch:
    """`given_rows` of an encoder–decoder."""
    shards = scored_split(data, config.data, pairs=True)
    if shards is not None:
        shards.check_tokenizer(tokenizer)
        split = Pairs(shards)
        chosen = [split[place] for place in evenly_spread(len(split), count)]
    else:
        fields = PairFields(config.data.source_field, config.data.target_field)
        with source_files(data) as files:
            found = text_pairs(read_text_pairs(files, fields), tokenizer)
            chosen = first_of(found, count, data)
    return cut_batch(chosen, tokenizer.separator, config.data.context)


def first_of(rows: Iterator[Found], count: int, data: str) -> list[Found]:
    """Up to `count` of the rows of `data`; a `UserError` if there are none."""
    found = list(islice(rows, count))
    if not found:
        raise UserError(f"{data} is empty: there is nothing to look at")
    return found


SHOWN = 100
"""Tokens of a row that are shown."""


@dataclass(frozen=True)
class Row:
    """A row of a batch: its targets that count, their mean loss in nats, and how it begins."""

    row: int
    targets: int
    loss: float
    text: str


@torch.no_grad()
def replay(run: Path | str, step: int, device: str = "auto") -> list[Row]:
    """The rows of the batch that made update number `step` (from 1 on, as in metrics.jsonl).

    The losses are those of the run's newest complete checkpoint, without dropout. Raises UserError
    for a step that the run does not have, or if its data cannot be read.
    """
    path = pinned(Path(run))
    model, tokenizer, config = load_run(path, device)
    if not 1 <= step <= config.train.steps:
        raise UserError(f"{run} has no step {step}: give one from 1 to {config.train.steps}")
    check_own_data(Path(run), config, "replay only runs that you have trained or resumed")
    corpus = open_corpus(config)
    _, checkpoint = run_and_checkpoint(path)
    if checkpoint is not None and load_state(checkpoint).data != corpus.fingerprint:
        raise UserError(
            f"the data of {run} ({config.data.source}) were changed since it read them: restore "
            "them"
        )
    batch = corpus.batches.batch(step - 1)
    rows = []
    with evaluating(model):
        for index, row in enumerate(batch.split(1)):
            here = row.to(model.device)
            loss = model.loss(here.inputs, here.targets, "sum", **here.keywords())
            scored = row.scored
            rows.append(Row(index, scored, float(loss) / max(scored, 1), text_of(row, tokenizer)))
    return rows


def text_of(row: Batch, tokenizer: Tokenizer) -> str:
    """How a batch's one row begins: what is given and, of a pair, what is asked for."""
    sides = [row.inputs] if row.source is None else [row.source, row.targets]
    return " → ".join(beginning(side[0].tolist(), tokenizer) for side in sides)


def beginning(ids: list[int], tokenizer: Tokenizer) -> str:
    """Text of the first tokens; ids that stand for no text, the mask token for one, left out."""
    known = [i for i in ids[:SHOWN] if i != IGNORED and i < tokenizer.vocab_size]
    return tokenizer.decode(known)
