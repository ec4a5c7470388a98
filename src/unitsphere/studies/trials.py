"""A sweep's trials: their results, how much each key matters, and when one is given up early."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.jobs import State
from unitsphere.studies.core.plan import Planned
from unitsphere.studies.core.points import Trial, edges, figure
from unitsphere.studies.core.space import Range, Space, Told, Value
from unitsphere.studies.core.statistics import paired
from unitsphere.training.log import METRICS, read_metrics

BINS = 4
"""parts of a range, equally many trials in each, that count as one value"""


@dataclass(frozen=True)
class Swept:
    """An arm's trials and, by seed, its reported runs: as the recipe is, and at the best point."""

    trials: Sequence[Trial]
    best: Trial | None
    as_is: Mapping[int, Record]
    at_best: Mapping[int, Record]

    @property
    def reported(self) -> list[Record]:
        """The records of both, each once: they are the same runs if the recipe is best."""
        both = [*self.as_is.values(), *self.at_best.values()]
        return list({record.planned.folder: record for record in both}.values())

    @property
    def records(self) -> list[Record]:
        """Of all runs."""
        return [*(r for trial in self.trials for r in trial.records), *self.reported]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the lowest mean; none if no trial finished."""
    known = [(trial.figure, trial.number, trial) for trial in trials if trial.figure is not None]
    return min(known)[2] if known else None


def told_of(trial: Trial) -> Told | None:
    """A trial as Optuna stores it; none for one that failed."""
    if trial.status == "failed":
        return None
    if trial.status == "stopped":
        run = next(r.planned.folder for r in trial.records if r.status == "stopped")
        seen = evaluations_of(run)
        return Told(trial.params, seen[-1], len(seen)) if seen else None
    return Told(trial.params, math.inf if trial.figure is None else trial.figure)


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """The share of the variance of the trials' figures that each key explains by itself (ε²).

    One-way analysis of variance, a range cut into BINS quantiles; ε² is the explained share less
    what chance would explain. A key is left out if its values have fewer than two finished trials
    each on average; one value may have a single trial, as a search seldom repeats a bad one.
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


def arm_document(recipe: str, space: Space, found: Swept) -> dict[str, Any]:
    """An arm: its trials on the split that was searched on, and what was reported."""
    best = found.best
    both = [s for s in found.as_is if is_finished(found.as_is[s], found.at_best.get(s))]
    pairs = [(figure(found.as_is[seed]), figure(found.at_best[seed])) for seed in both]
    compared = pairs and found.at_best != found.as_is  # not if the recipe itself is best
    gap = paired([a for a, _ in pairs], [b for _, b in pairs]) if compared else None
    return {
        "recipe": recipe,
        "measure": measure(best),
        "best": None if best is None else {"trial": best.number, "params": best.params},
        "at_edge": [] if best is None else edges(space, best.params, found.trials),
        "importance": importance(space, found.trials),
        "trials": [trial_document(trial) for trial in found.trials],
        "reported": {
            "as_is": {str(seed): run_document(r) for seed, r in found.as_is.items()},
            "best": {str(seed): run_document(r) for seed, r in found.at_best.items()},
            "difference": None if gap is None else asdict(gap),
        },
    }


def measure(best: Trial | None) -> str:
    """What the figures are: bits per byte, or the loss of runs that have none."""
    without = best is not None and best.records[0].bits_per_byte is None
    return "loss" if without else "bits_per_byte"


def is_finished(*records: Record | None) -> bool:
    """Whether all of them are there and came to their end."""
    return all(record is not None and record.status == "finished" for record in records)


def trial_document(trial: Trial) -> dict[str, Any]:
    """A trial; `figure` is its mean over the seeds on the split that was searched on."""
    return {
        "number": trial.number,
        "params": trial.params,
        "status": trial.status,
        "figure": trial.figure,
        "seeds": {str(record.planned.seed): run_document(record) for record in trial.records},
    }


def run_document(record: Record) -> dict[str, Any]:
    """A run."""
    return {
        "status": record.status,
        "loss": record.loss,
        "bits_per_byte": record.bits_per_byte,
        "run": str(record.planned.folder),
        "error": record.error,
    }


@dataclass(frozen=True)
class EarlyStop:
    """When a trial is given up. Its loss is not a result: it has not been annealed."""

    rule: Literal["none", "median"] = "none"
    """median: its best evaluation so far is worse than the median of the others at that point"""
    evaluations: int = 10
    """of a run, at equal distances"""
    after: float = 0.3
    """share of a run before which it is never stopped"""
    others: int = 4
    """runs that must have come as far"""

    def __post_init__(self) -> None:
        if self.evaluations < 2 or self.others < 1 or not 0 <= self.after < 1:
            raise UserError(
                "stop.evaluations must be at least 2, stop.others at least 1, and stop.after from "
                f"0 to below 1: {self.evaluations}, {self.others} and {self.after}"
            )

    def spacing(self, steps: int) -> int:
        """Steps between two evaluations of a run of so many; 0 if only its end is evaluated."""
        return 0 if self.rule == "none" else math.ceil(steps / self.evaluations)


def rivals_of(runs: Mapping[tuple[str, int], Sequence[Planned]]) -> dict[Path, list[Path]]:
    """Folder of a run -> those of its rivals, the runs of its arm's other trials.

    `runs` are those of each (arm, trial).
    """
    return {
        run.folder: [
            other.folder
            for (a, n), others in runs.items()
            if a == arm and n != number
            for other in others
        ]
        for (arm, number), own in runs.items()
        for run in own
    }


class MedianRule:
    """Sets `stop` of states whose runs are worse than the median of their rivals.

    Args:
        rule: its settings.
        rivals: for each run folder those of the other trials, which are measured alike.
    """

    def __init__(self, rule: EarlyStop, rivals: Mapping[Path, Sequence[Path]]) -> None:
        self.rule = rule
        self.rivals = rivals
        self.seen: dict[Path, tuple[int, list[float]]] = {}

    def __call__(self, states: list[State]) -> None:
        """Look at every run that is at work."""
        for state in states if self.rule.rule == "median" else []:
            ended = state.step == state.job.steps
            if state.status == "running" and state.stop is None and not ended:
                state.stop = self.verdict(state.job.out)

    def verdict(self, run: Path) -> str | None:
        """Why a run is to stop, or None."""
        own, rule = self.evaluations(run), self.rule
        count = len(own)
        if not rule.after * rule.evaluations < count < rule.evaluations:
            return None
        if not is_hopeless(own, [self.evaluations(r) for r in self.rivals[run]], rule.others):
            return None
        return (
            f"stopped at evaluation {count} of {rule.evaluations}: at best {min(own):.4f}, "
            "worse than the median of the others there"
        )

    def evaluations(self, run: Path) -> list[float]:
        """A run's evaluations so far, in order; read again only when its metrics have grown."""
        path = run / METRICS
        size = path.stat().st_size if path.exists() else 0
        if size and self.seen.get(run, (0, []))[0] != size:
            self.seen[run] = (size, evaluations_of(run))
        return self.seen.get(run, (0, []))[1]


def is_hopeless(own: Sequence[float], rivals: Sequence[Sequence[float]], least: int) -> bool:
    """Whether a run's best loss is worse than the median of its rivals' at its last evaluation.

    No fewer than `least` rivals must have come as far.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    pruner = optuna.pruners.MedianPruner(n_startup_trials=least, n_min_trials=least)
    study = optuna.create_study()
    for losses in rivals:
        if losses:
            steps = dict(enumerate(losses, 1))
            study.add_trial(create_trial(value=losses[-1], intermediate_values=steps))
    steps = dict(enumerate(own, 1))
    return pruner.prune(study, create_trial(state=TrialState.RUNNING, intermediate_values=steps))


def evaluations_of(run: Path) -> list[float]:
    """The validation losses of a run in order: bits per byte, or nats per token without them."""
    return [figure_of(record) for record in read_metrics(run) if "val_loss" in record]


def figure_of(record: Mapping[str, float]) -> float:
    """What trials are compared by; bits per byte hold for any tokenizer."""
    return record.get("val_bits_per_byte", record["val_loss"])
