"""Each arm's learning rate: a geometric grid that grows while its best lies at an edge."""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unitsphere.studies.execute import Executor, Record, execute
from unitsphere.studies.jobs import Job
from unitsphere.studies.plan import Planned


@dataclass
class Search:
    """The search of one rate: `found` maps each rate to what came of its runs, one a seed.

    `plan` gives the runs of a rate; `name` is for people.
    """

    name: str
    rates: list[float]
    plan: Callable[[float], Sequence[Planned]]
    found: dict[float, list[Record]] = field(default_factory=dict)

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
    """The rate to add when the best lies at an edge of the grid; None when it is bracketed."""
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
        added = {s.name: s.next(ratio) for s in searches}
        for s in searches:
            rate = added[s.name]
            if rate is not None:
                print(f"{s.name}: best at an edge of its grid, adds {rate:g}", file=sys.stderr)
                s.rates.append(rate)
        if not any(added.values()):
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
