"""Optuna's sampler as a source of trials. What it knows is built anew from the trials' own results
each time: nothing of it is stored, so an interrupted sweep goes on as if it had not been.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unitsphere.errors import UserError
from unitsphere.studies.space import Choices, Params, Range, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Told:
    """What came of a trial: its loss, infinite if it diverged.

    Of one that was stopped early `loss` is its last evaluation, the `stopped`th.
    """

    params: Params
    loss: float
    stopped: int | None = None


def check_optuna() -> None:
    """Raise UserError unless Optuna is installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError("method = \"optuna\" needs Optuna: pip install 'unitsphere[sweep]'")


def ask(space: Space, told: Sequence[Told], count: int, seed: int, asked: int) -> list[Params]:
    """The next `count` points after `asked` by the tree-structured Parzen estimator (TPE).

    The seed goes on with the points asked for, so that those of a turn which failed whole are not
    asked for again.
    """
    check_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + asked, constant_liar=True)
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
