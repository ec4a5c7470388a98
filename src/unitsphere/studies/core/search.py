"""Points of a sweep by Optuna's samplers, and hopeless trials stopped by its pruner.

(A grid is `itertools.product`, in `space`: Optuna's visits the same points in another order.)

Optuna stores nothing: each time it is told the results of the trials, from their own folders, so
that a sweep that was interrupted resumes as if it had not been. Points that were drawn are kept in
the study's folder, since another version of Optuna may draw others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unitsphere.errors import UserError
from unitsphere.studies.core.jobs import State
from unitsphere.studies.core.space import Choices, Params, Range, Space
from unitsphere.training.log import METRICS, read_metrics

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Told:
    """The result of a trial: its loss, infinite if it diverged.

    `stopped`: if it was stopped early, at which evaluation; `loss` is then the one there.
    """

    params: Params
    loss: float
    stopped: int | None = None


def random_points(space: Space, count: int, seed: int) -> list[Params]:
    """The first `count` points of those that a seed draws."""
    from optuna.samplers import RandomSampler

    return drawn(space, (), count, RandomSampler(seed=seed))


def next_points(
    space: Space, told: Sequence[Told], count: int, seed: int, asked: int
) -> list[Params]:
    """The next `count` points after `asked` by the tree-structured Parzen estimator (TPE).

    The seed depends on `asked`, so that points which all failed are not drawn again.
    """
    from optuna.samplers import TPESampler

    sampler = TPESampler(seed=seed * 100_003 + asked, constant_liar=True)
    return drawn(space, told, count, sampler)


def drawn(space: Space, told: Sequence[Told], count: int, sampler: "BaseSampler") -> list[Params]:
    """Points of a sampler that is told the results of earlier trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    distributions = {key: distribution(choice) for key, choice in space.items()}
    study.add_trials([frozen(trial, distributions) for trial in told])
    points = [study.ask(distributions).params for _ in range(count)]
    return [{key: taken(space[key], point[key]) for key in space} for point in points]


def distribution(choice: Choices | Range) -> "BaseDistribution":
    """A choice in Optuna's terms."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(choice, Choices):
        return CategoricalDistribution(choice.values)
    if choice.whole:
        return IntDistribution(int(choice.low), int(choice.high), log=choice.log)
    return FloatDistribution(choice.low, choice.high, log=choice.log)


def frozen(told: Told, distributions: dict[str, "BaseDistribution"]) -> "FrozenTrial":
    """A trial as Optuna remembers it."""
    from optuna.trial import TrialState, create_trial

    if told.stopped is None:
        return create_trial(params=told.params, distributions=distributions, value=told.loss)
    return create_trial(
        params=told.params,
        distributions=distributions,
        state=TrialState.PRUNED,
        intermediate_values={told.stopped: told.loss},
    )


def taken(choice: Choices | Range, value: bool | int | float | str) -> bool | int | float | str:
    """A value as the runs use it."""
    if isinstance(choice, Choices) or isinstance(value, str):
        return value
    return choice.take(value)


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
