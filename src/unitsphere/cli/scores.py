"""Figures of `unitsphere eval`: those of pairs, and the tables of those by position and of tasks.

They are plain values under the names of the JSON form.
"""

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.cli.output import print_table
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.data.documents import PairFields
    from unitsphere.data.pairs import Pair
    from unitsphere.inference.translate import Search
    from unitsphere.training.checkpoint.store import State
    from unitsphere.training.evaluate.text import Evaluation
    from unitsphere.training.load import LoadedRun


def figures(found: "Evaluation") -> dict[str, Any]:
    """An evaluation's figures under the names of the JSON form.

    `accuracy` is there if the model has one, `text_lost` if the tokenizer loses text.
    """
    named = dataclasses.asdict(found)
    if found.accuracy is None:
        del named["accuracy"]
    if not found.text_lost:
        del named["text_lost"]
    return named


@dataclasses.dataclass(frozen=True)
class PairSource:
    """Pairs as tokens, and the targets as text: both can be asked for again and again."""

    pairs: "Callable[[], Iterable[Pair]]"
    references: Callable[[], Iterable[str]]
    lost: float
    """`tokenizer.text_lost` of the text"""


def check_needs(args: Any, needed: str, *names: str) -> None:
    """Raise UserError for an option that is given without the one that it needs."""
    for name in names if not getattr(args, needed) else ():
        value = getattr(args, name)
        if value is not None and value is not False:  # 0 is a value
            raise UserError(f"--{name} needs --{needed}: give both, or leave it out")


def refuse_pair_options(args: Any, objective: str) -> None:
    """Raise UserError for an option of a verb that only an encoder–decoder has."""
    for name in ("beam", "length_penalty", "source_field", "target_field"):
        if getattr(args, name, None) is not None:
            raise UserError(
                f"--{name} is for runs with objective seq2seq, and {args.run} has {objective}: "
                "leave it out"
            )


def search_of(args: Any, max_tokens: int) -> "Search":
    """The search of a verb's --beam and --length_penalty; UserError if only the latter is given."""
    from unitsphere.inference.translate import Search

    if args.length_penalty is not None and (args.beam or 1) < 2:
        raise UserError("--length_penalty needs a --beam of at least 2: give both, or leave it out")
    given = {name: getattr(args, name) for name in ("beam", "length_penalty")}
    return Search(max_tokens, **{key: value for key, value in given.items() if value is not None})


def pair_figures(
    run: "LoadedRun", source: PairSource, context: int, search: "Search"
) -> dict[str, Any]:
    """The losses on pairs in fp32, and with a beam of at least 1 also BLEU."""
    from unitsphere.training.evaluate.pairs import evaluate_pairs
    from unitsphere.training.evaluate.text import batch_rows

    separator, rows = run.tokenizer.separator, batch_rows(run.config, context)
    found = evaluate_pairs(run.model, source.pairs(), separator, context, rows, lost=source.lost)
    if found.cut_sources or found.cut_targets:
        print(
            f"longer than {context} tokens, and cut there: {found.cut_sources:,} sources and "
            f"{found.cut_targets:,} targets of {found.pairs:,} pairs",
            file=sys.stderr,
        )
    bleu = bleu_figures(run, source, context, rows, search) if search.beam else {}
    return figures(found) | bleu


def bleu_figures(
    run: "LoadedRun", source: PairSource, context: int, rows: int, search: "Search"
) -> dict[str, Any]:
    """BLEU of what the model writes for the sources, and its settings."""
    from unitsphere.inference.translate import write_targets

    sources = (pair.source.tolist() for pair in source.pairs())
    written = write_targets(run.model, run.tokenizer, sources, search, context, rows)
    score, signature = bleu(list(written), list(source.references()))
    return {
        "bleu": score,
        "bleu_signature": signature,
        "beam": search.beam,
        "length_penalty": search.length_penalty,
    }


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU, from 0 to 100, of hypotheses with one reference each, and sacrebleu's signature.

    The signature says how it was computed; texts are taken as they are (tokenized by "13a").

    Raises UserError if sacrebleu is not installed, ValueError unless there are as many of both.
    """
    check_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def check_sacrebleu() -> None:
    """Raise a `UserError` unless sacrebleu is installed: call it before a long decoding."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise UserError(
            "BLEU needs sacrebleu: pip install 'unitsphere[translate]', or leave it out (--beam 0)"
        )


@contextlib.contextmanager
def pair_source(run: "LoadedRun", data: str | None, fields: "PairFields") -> Iterator[PairSource]:
    """The pairs of a parallel JSONL, or of the run's own validation split."""
    from unitsphere.data.documents import read_text_pairs
    from unitsphere.data.pairs import Pairs
    from unitsphere.data.prepare import scored_split
    from unitsphere.data.sources import scored_files
    from unitsphere.data.tokenizer import Sample, text_lost
    from unitsphere.training.evaluate.pairs import text_pairs

    shards = scored_split(data, run.config.data, pairs=True)
    if shards is not None:
        shards.check_tokenizer(run.tokenizer)
        pairs, decode = Pairs(shards), run.tokenizer.decode
        yield PairSource(
            lambda: pairs, lambda: (decode(p.target.tolist()) for p in pairs), shards.text_lost
        )
        return
    assert data is not None  # that means a split
    with scored_files(data, "there are no pairs") as files:
        sample = Sample(text for pair in read_text_pairs(files, fields) for text in pair)
        yield PairSource(
            lambda: text_pairs(read_text_pairs(files, fields), run.tokenizer),
            lambda: (pair.target for pair in read_text_pairs(files, fields)),
            text_lost(run.tokenizer, sample.texts),
        )


def pinned_state(path: Path) -> "tuple[Path, State | None]":
    """The checkpoint to load for a run or checkpoint, and its state; other paths as they are.

    A run may train on while it is evaluated, and this checkpoint may be gone at the end.
    """
    from unitsphere.training.checkpoint.store import load_state
    from unitsphere.training.folder import run_and_checkpoint
    from unitsphere.training.load import pinned

    path = pinned(path)
    _, checkpoint = run_and_checkpoint(path)
    return path, None if checkpoint is None else load_state(checkpoint)


def keep(path: Path, state: "State | None", context: int, found: Mapping[str, Any]) -> None:
    """Add the figures of tasks to the run's tasks.jsonl, from which `report` draws accuracy.

    path: the run's folder, or one of its checkpoints; state: that of the weights. An exported model
    has none and keeps nothing.
    """
    from unitsphere.training.folder import add_evaluation, run_and_checkpoint

    if state is None:
        return
    folder, _ = run_and_checkpoint(path)
    record = {"step": state.step, "tokens": state.tokens, "context": context, "tasks": dict(found)}
    try:
        add_evaluation(folder, record)
    except OSError as error:
        print(f"cannot keep the figures in {folder}: {error.strerror}", file=sys.stderr)


def print_positions(found: Mapping[int, Mapping[str, Any]]) -> None:
    """A row for each span of positions, and a column for each context."""
    longest = found[max(found)]["by_position"]
    rows = [
        [f"{one['first']:,}–{one['last']:,}", *(cell(found[c], one["last"]) for c in found)]
        for one in longest
    ]
    print()
    print_table(["tokens seen", *(f"context {context:,}" for context in found)], rows)


def cell(figures: Mapping[str, Any], last: int) -> str:
    """The perplexity of the span that ends with `last`, where the context has it."""
    for one in figures["by_position"]:
        if one["last"] == last:
            return f"{one['perplexity']:,.2f}"
    return ""


def print_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """A row for each task and metric; what belongs to a task is in its first row."""
    rows = []
    for task, found in tasks.items():
        head = [task, f"{found['items']:,}", str(found["shots"])]
        for name, metric in found["metrics"].items():
            error = metric["standard_error"]
            rows.append(
                [*head, name, f"{metric['value']:.4f}", "" if error is None else f"{error:.4f}"]
            )
            head = ["", "", ""]
    print_table(["task", "items", "shots", "metric", "value", "± stderr"], rows)
