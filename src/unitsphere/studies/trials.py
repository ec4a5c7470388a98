"""What came of a sweep's trials, and how much each key matters."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.space import Params, Range, Space, Value

BINS = 4
"""parts of a range, equally many trials in each, that count as one value"""


@dataclass(frozen=True)
class Trial:
    """A point of an arm's space and what came of its runs, one for each of tune.seeds."""

    number: int
    params: Params
    records: Sequence[Record]

    @property
    def status(self) -> str:
        """finished if all its runs are, else what the first other one is."""
        return next((r.status for r in self.records if r.status != "finished"), "finished")

    @property
    def figure(self) -> float | None:
        """Mean bits per byte (without these nats a token), if every run finished."""
        known = [figure(record) for record in self.records if record.status == "finished"]
        return statistics.mean(known) if len(known) == len(self.records) else None


@dataclass(frozen=True)
class Swept:
    """An arm's trials and, by seed, its reported runs: as the recipe is, and at the best point."""

    trials: Sequence[Trial]
    best: Trial | None
    as_is: Mapping[int, Record]
    at_best: Mapping[int, Record]

    @property
    def reported(self) -> list[Record]:
        """The records of both."""
        return [*self.as_is.values(), *self.at_best.values()]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the lowest mean; none if no trial finished."""
    known = [(trial.figure, trial.number, trial) for trial in trials if trial.figure is not None]
    return min(known)[2] if known else None


def figure(record: Record) -> float:
    """What a finished run is judged by."""
    found = record.loss if record.bits_per_byte is None else record.bits_per_byte
    assert found is not None
    return found


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Each key's share of the variance of the trials' figures that it explains alone (ε², 0 to 1).

    One-way analysis of variance, a range cut into BINS quantiles; ε² is the explained share less
    what chance would explain. A key is left out if there are not two finished trials a value.
    """
    done = [(trial.params, trial.figure) for trial in trials if trial.figure is not None]
    figures = np.array([figure for _, figure in done])
    total = float(((figures - figures.mean()) ** 2).sum()) if len(done) > 2 else 0.0
    if total == 0:
        return {}
    found = {}
    for key, choice in space.items():
        groups = grouped([params[key] for params, _ in done], isinstance(choice, Range))
        own = [figures[groups == group] for group in np.unique(groups)]
        within = float(sum(((part - part.mean()) ** 2).sum() for part in own))
        free = len(figures) - len(own)
        if free < len(own):
            continue
        chance = (len(own) - 1) * within / free
        found[key] = max(0.0, (total - within - chance) / total)
    return found


def grouped(values: Sequence[Value], ordered: bool) -> np.ndarray:
    """The group of each value: its own, or of many different numbers the quantile."""
    names = sorted(set(values), key=repr)
    if not ordered or len(names) <= BINS:
        return np.array([names.index(value) for value in values])
    numbers = np.array([float(value) for value in values])
    return np.searchsorted(np.quantile(numbers, np.arange(1, BINS) / BINS), numbers, side="right")
