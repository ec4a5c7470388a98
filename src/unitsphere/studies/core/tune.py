"""Each arm's rate, tuned on a grid that grows, and the data that rates and other keys are tuned on.

The validation documents that a study reports take no part in its tuning: a share of the training
documents is held out in their place. The tokens are those of the training split, so tokenizer and
vocabulary are the same as in the final runs.
"""

import dataclasses
import hashlib
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import Any

import numpy as np

from unitsphere.data.job import share_of
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import (
    NAME,
    Counts,
    FileEntry,
    Manifest,
    Shards,
    is_prepared,
    manifest_text,
    read_manifest,
)
from unitsphere.data.writer import SplitWriter, publish, workspace, write_file
from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import Executor, Record, execute, failure_lines
from unitsphere.studies.core.jobs import Job
from unitsphere.studies.core.plan import Planned, arm_config, own_rate, tuning_run
from unitsphere.studies.core.spec import Study
from unitsphere.training.config import RunConfig


@dataclass
class Search:
    """The search of one rate: `found` maps each rate to the results of its runs, one per seed.

    `plan` gives the runs of a rate; `name` is for people.
    """

    name: str
    rates: list[float]
    plan: Callable[[float], Sequence[Planned]]
    found: dict[float, list[Record]] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        """All runs."""
        return [record for records in self.found.values() for record in records]

    def losses(self) -> dict[float, float]:
        """Each rate's mean loss over its runs; infinite where one diverged, absent where failed."""
        return {
            rate: mean_loss(records)
            for rate, records in self.found.items()
            if all(record.status != "failed" for record in records)
        }

    def best(self) -> float | None:
        """The rate of the lowest mean; None if every rate diverged or failed."""
        losses = self.losses()
        known = [rate for rate in sorted(losses) if math.isfinite(losses[rate])]
        return min(known, key=losses.__getitem__, default=None)

    def next(self, ratio: float) -> float | None:
        """The rate to add: beyond a best one at an edge, below where all diverged; else None.

        None too if the rate beyond has been tried and its run failed.
        """
        losses, best = self.losses(), self.best()
        rate = grown(list(losses), best if best is not None else min(losses, default=None), ratio)
        return None if rate in self.found else rate

    def at_edge(self) -> bool:
        """Whether no worse rate is known on both sides of the best."""
        losses, best = sorted(self.losses()), self.best()
        return best is None or best in (losses[0], losses[-1])


def grid(centre: float, points: int, ratio: float) -> list[float]:
    """`points` rates around `centre`, each `ratio` times the one before, to three digits.

    An even number has one more below than above. Of a single one no digit is lost.
    """
    if points == 1:
        return [centre]
    return [rounded(centre * ratio ** (i - points // 2)) for i in range(points)]


def rounded(rate: float) -> float:
    """Three significant digits."""
    return float(f"{rate:.3g}")


def grown(rates: Sequence[float], best: float | None, ratio: float) -> float | None:
    """The rate to add when the best is at an edge of the grid; None when it is bracketed."""
    if best is None:
        return None
    if best == min(rates):
        return rounded(best / ratio)
    return rounded(best * ratio) if best == max(rates) else None


def search(
    searches: Sequence[Search],
    executor: Executor,
    ratio: float,
    growths: int,
    later: Sequence[Job] = (),
) -> None:
    """Run the grids side by side, and grow each, `growths` times at most, until it is bracketed.

    `later`: the runs that will follow, for the time left.
    """
    for round_ in range(growths + 1):
        run_missing(searches, executor, later)
        if round_ == growths:
            return
        added = [s.next(ratio) for s in searches]
        for s, rate in zip(searches, added, strict=True):
            if rate is not None:
                print(f"{s.name}: best at an edge of its grid, adds {rate:g}", file=sys.stderr)
                s.rates.append(rate)
        if not any(added):
            return


def run_missing(searches: Sequence[Search], executor: Executor, later: Sequence[Job] = ()) -> None:
    """Run every rate that has no result yet: every search's first, then every second, and so on."""
    due = [(s, rate) for s in searches for rate in s.rates if rate not in s.found]
    due.sort(key=lambda pair: pair[0].rates.index(pair[1]))
    plans = [s.plan(rate) for s, rate in due]
    records = iter(execute([run for runs in plans for run in runs], executor, later=later))
    for (s, rate), runs in zip(due, plans, strict=True):
        s.found[rate] = [next(records) for _ in runs]


def mean_loss(records: Sequence[Record]) -> float:
    """Mean over the runs; infinite if one of them diverged."""
    losses = [record.loss for record in records if record.loss is not None]
    return statistics.mean(losses) if len(losses) == len(records) else math.inf


@dataclass(frozen=True)
class Point:
    """The best point of a search of several keys.

    name: of its folders. params: as declared. keys: what it sets in its arm. edges: the keys whose
    value is the first or last of those to try. neighbours: the loss of each point of the grid that
    differs in one key by one step, None where it was not tried.
    """

    name: str
    params: Mapping[str, Any]
    keys: Mapping[str, Any]
    loss: float
    edges: Sequence[str]
    neighbours: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Tuned:
    """The rate of an arm at a budget (None: at none did it train) and how it was chosen.

    tokens: the budget at which it was tuned. rates: each rate of the grid with its mean loss on the
    tuning split, None where it diverged or failed; empty if nothing was tuned. errors: why tuning
    runs failed that did not diverge.
    """

    lr: float | None
    tokens: int
    rates: Mapping[float, float | None]
    at_edge: bool
    errors: tuple[str, ...] = ()
    trials: Sequence[Mapping[str, Any]] = ()
    """where several keys were tuned (points.py): each point with its loss"""
    point: Point | None = None
    """the best of them"""
    law: str | None = None
    """by which its rates were carried here from the budget that they were tuned at"""
    failed: int = 0
    """how many of `rates` have no result: a run of theirs failed"""

    @property
    def tried(self) -> int:
        """How many rates, or points of several keys, were trained."""
        return len(self.rates) + len(self.trials)

    @property
    def results(self) -> int:
        """How many of them have a result: divergence is one, failure is not."""
        failed = sum(trial["status"] == "failed" for trial in self.trials)
        return self.tried - self.failed - failed


def tuned_rates(
    out: Path,
    study: Study,
    budgets: Sequence[int],
    executor: Executor,
    later: Sequence[Job] = (),
) -> dict[tuple[str, int], Tuned]:
    """The rate of each arm at each budget, by (arm, budget): tuned, or with one point as given.

    `later`: the runs that will follow, for the time left.
    """
    if study.tune.points == 1:
        return {
            (arm, tokens): Tuned(own_rate(study, arm, tokens), tokens, {}, at_edge=False)
            for arm in study.arms
            for tokens in budgets
        }
    at = study.tune.budgets or budgets
    searches = {
        (arm, tokens): arm_search(out, study, arm, tokens) for arm in study.arms for tokens in at
    }
    search(list(searches.values()), executor, study.tune.ratio, study.tune.growths, later)
    found = {place: tuned(s, place[1]) for place, s in searches.items()}
    return {
        (arm, tokens): found[arm, nearest(tokens, at)] for arm in study.arms for tokens in budgets
    }


def arm_search(out: Path, study: Study, arm: str, tokens: int) -> Search:
    """The search of an arm's rate at a budget."""
    config = arm_config(study, arm)
    data = tuning_data(config, study.tune.fraction)

    def runs(rate: float) -> list[Planned]:
        return [tuning_run(out, study, arm, tokens, rate, s, data) for s in study.tune.seeds]

    rates = grid(own_rate(study, arm, tokens), study.tune.points, study.tune.ratio)
    return Search(f"{arm} {short(tokens)}", rates, runs)


def tuned(found: Search, tokens: int) -> Tuned:
    """What a search came to."""
    losses = found.losses()
    rates = {rate: losses.get(rate, math.inf) for rate in sorted(found.found)}
    known = {rate: loss if math.isfinite(loss) else None for rate, loss in rates.items()}
    errors = tuple(failure_lines(found.records))
    failed = len(rates) - len(losses)
    return Tuned(found.best(), tokens, known, found.at_edge(), errors, failed=failed)


def nearest(tokens: int, budgets: Sequence[int]) -> int:
    """The budget that differs least by its ratio."""
    return min(budgets, key=lambda budget: abs(math.log(budget / tokens)))


PIECE = 1 << 20
"""Tokens that are copied at a time."""


def tuning_data(config: RunConfig, fraction: float) -> Path:
    """A prepared folder, in data.cache, of the run's training split without its validation split.

    `fraction` of the documents (of pairs, with seq2seq) is its validation split, chosen by a hash
    of their index; of a single document it is the end. Raises UserError for unusable data.
    """
    source = Shards.open(prepared(config.data, pairs=config.objective == "seq2seq"), "train")
    if source.pairs and source.n_documents < 4:
        raise UserError(f"{config.data.source} has too few pairs to tune on a share of them")
    wanted = hashlib.sha256(f"tuning {source.fingerprint} {fraction!r}".encode()).hexdigest()
    out = Path(expanduser(config.data.cache)) / f"tuning-{wanted[:16]}"
    if not is_prepared(out):
        with workspace(out) as partial:
            if not is_prepared(out):  # by another study, while this one waited
                write_splits(source, fraction, wanted, partial)
                publish(partial, out)
    return out


def write_splits(source: Shards, fraction: float, fingerprint: str, folder: Path) -> None:
    """Fill an empty folder with the documents of `source` in two splits, its manifest last."""
    made_from = read_manifest(source.folder)
    tokenizer = source.tokenizer()
    train = SplitWriter(folder, "train", made_from.dtype, source.separator)
    val = SplitWriter(folder, "val", made_from.dtype, source.separator)
    size = target_size = 0
    for number, (start, stop) in enumerate(documents(source, fraction)):
        if holds_out(number, source.pairs, fraction):
            copy(source, start, stop, val)
            text = len(tokenizer.decode(source[start:stop].tolist()).encode())
            size += text
            target_size += text if source.pairs and number % 2 else 0
        else:
            copy(source, start, stop, train)
    saved = write_file(folder / "tokenizer.json", tokenizer.json.encode())
    train_counts, train_files = closed(
        train, source.n_bytes - size, source.target_bytes - target_size
    )
    val_counts, val_files = closed(val, size, target_size)
    manifest = Manifest(
        source=f"the training split of {made_from.source}",
        note="the training split, split again to tune on",
        input=fingerprint,
        dtype=made_from.dtype,
        tokenizer=made_from.tokenizer,
        train=train_counts,
        val=val_counts,
        pairs=source.pairs,
        text_lost=made_from.text_lost,
        files=(saved.entry("tokenizer", "all"), *train_files, *val_files),
    )
    write_file(folder / NAME, manifest_text(manifest).encode())


def documents(source: Shards, fraction: float) -> list[tuple[int, int]]:
    """First token and end of each document, separators left out; a single one is cut in two."""
    starts = [int(start) for start in source.document_starts]
    found = [(a + 1, b) for a, b in itertools.pairwise([*starts, source.n_tokens])]
    if len(found) == 1:
        start, stop = found[0]
        cut = stop - max(1, round(fraction * (stop - start)))
        return [(start, cut), (cut, stop)]
    return found


def holds_out(document: int, pairs: bool, fraction: float) -> bool:
    """Whether a document is to tune on; of the first two the second always is."""
    index = document // 2 if pairs else document
    return index == 1 if index < 2 else share_of("tuning", index) < fraction


def copy(source: Shards, start: int, stop: int, split: SplitWriter) -> None:
    """Write a document of `source`; its bytes of text are counted by the caller."""
    split.begin_document()
    for first in range(start, stop, PIECE):
        split.write(source[first : min(first + PIECE, stop)].astype(np.uint32), 0)


def closed(split: SplitWriter, size: int, target_size: int) -> tuple[Counts, list[FileEntry]]:
    """A split's counts, with its bytes of text and of targets, and its files."""
    counts, files = split.close()
    return dataclasses.replace(counts, bytes=size, target_bytes=target_size), files
