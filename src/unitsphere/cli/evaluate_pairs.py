"""`unitsphere eval` of an encoder–decoder: its losses on pairs, and BLEU of what it writes."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.data.pairs import Pair
    from unitsphere.data.sources import PairFields
    from unitsphere.inference.targets import Search
    from unitsphere.training.load import LoadedRun


@dataclasses.dataclass(frozen=True)
class PairSource:
    """Pairs as tokens, and the targets as text: both can be asked for again and again."""

    pairs: "Callable[[], Iterable[Pair]]"
    references: Callable[[], Iterable[str]]
    lost: float
    """`tokenizer.text_lost` of the text"""


def pair_figures(
    run: "LoadedRun",
    source: PairSource,
    context: int,
    rows: int,
    beam: int,
    length_penalty: float,
) -> dict[str, Any]:
    """The losses on pairs in fp32, and with a beam of at least 1 also BLEU."""
    from unitsphere.inference.bleu import check_sacrebleu
    from unitsphere.inference.targets import Search
    from unitsphere.training.evaluate.pairs import evaluate_pairs

    if beam:
        check_sacrebleu()
    separator = run.tokenizer.separator
    found = evaluate_pairs(run.model, source.pairs(), separator, context, rows, lost=source.lost)
    figures = dataclasses.asdict(found)
    del figures["accuracy"]  # of masked models
    if not found.text_lost:
        del figures["text_lost"]
    if found.cut_sources or found.cut_targets:
        print(
            f"longer than {context} tokens, and cut there: {found.cut_sources:,} sources and "
            f"{found.cut_targets:,} targets of {found.pairs:,} pairs",
            file=sys.stderr,
        )
    if beam:
        search = Search(max(context - 1, 1), beam, length_penalty)
        figures |= bleu_figures(run, source, context, rows, search)
    return figures


def bleu_figures(
    run: "LoadedRun", source: PairSource, context: int, rows: int, search: "Search"
) -> dict[str, Any]:
    """BLEU of what the model writes for the sources, and how it was come by."""
    from unitsphere.inference.bleu import bleu
    from unitsphere.inference.targets import write_targets

    sources = (pair.source.tolist() for pair in source.pairs())
    written = write_targets(run.model, run.tokenizer, sources, search, context, rows)
    found = bleu(list(written), list(source.references()))
    return {
        "bleu": found.score,
        "bleu_signature": found.signature,
        "beam": search.beam,
        "length_penalty": search.length_penalty,
    }


@contextlib.contextmanager
def pair_source(run: "LoadedRun", data: str | None, fields: "PairFields") -> Iterator[PairSource]:
    """The pairs of a parallel JSONL, or of the run's own validation split."""
    from unitsphere.data.pairs import Pairs
    from unitsphere.data.prepare import scored_split
    from unitsphere.data.sources import read_text_pairs, source_files
    from unitsphere.data.tokenizer import text_lost
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
    with source_files(data) as files:
        if not any(path.stat().st_size for path in files):
            raise UserError(f"{data} is empty: there are no pairs to evaluate")
        yield PairSource(
            lambda: text_pairs(read_text_pairs(files, fields), run.tokenizer),
            lambda: (pair.target for pair in read_text_pairs(files, fields)),
            text_lost(run.tokenizer, (pair.target for pair in read_text_pairs(files, fields))),
        )
