"""Tuning of any keys of an arm: as many points for each arm, by coordinate search or by Optuna.

[tune]
trials = 12                                     # points of each arm at each budget
[tune.keys.gpt-plus-muon]
"optim.lr" = [2e-3, 4e-3, 8e-3]
"optim.rates.*" = [1.0, 2.5, 4.0]               # embedding, head and scale together
"model.init_std" = [0.01, 0.02, 0.04, 0.09]

Coordinate search starts from the listed values that are nearest to the arm's own, and spends what
is left of `trials` on the untried points nearest to the best, so that all arms get as many runs.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from unitsphere.config import did_you_mean, flatten, to_dict
from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Executor, Record, execute, failure_lines
from unitsphere.studies.core.jobs import Job
from unitsphere.studies.core.local import available_slots
from unitsphere.studies.core.plan import (
    LR,
    RUNS,
    Planned,
    arm_config,
    at_budget,
    own_rate,
    rate_keys,
    transferred,
    tuning_run,
)
from unitsphere.studies.core.space import (
    MOST_POINTS,
    Asked,
    Choices,
    Params,
    Range,
    Space,
    Told,
    count_points,
    grid_values,
    neighbours,
    next_coordinates,
    own_point,
    space_of,
    without_grid,
)
from unitsphere.studies.core.spec import OWN_KEYS, ArmSpec, Study
from unitsphere.studies.core.tune import Point, Tuned, mean_loss, nearest, tuning_data
from unitsphere.training.config import RunConfig

ALL = ".*"
"""End of a key that stands for all below it."""
FIXED = {key: why for key, why in OWN_KEYS.items() if key != LR}
"""Keys that are never tuned, and why."""


def arm_space(study: Study, arm: str) -> Space:
    """What may be chosen for an arm; a UserError for a mistake in it."""
    where = f"tune.keys.{arm}"
    space = space_of(study.tune.keys[arm], where)
    if not space:
        raise UserError(f"'{where}' names no key: give it a list of values, or a range")
    if study.tune.method == "optuna":
        return without_grid(space)
    grid_values(space, where)
    if count_points(space) > MOST_POINTS:
        raise UserError(f"'{where}' has more than {MOST_POINTS} points: use fewer values")
    return space


def most_points(study: Study, arm: str) -> int:
    """How many points of an arm are tried at a budget: a grid may have fewer than tune.trials."""
    trials = study.tune.trials or 0
    found = arm_space(study, arm)
    return trials if study.tune.method == "optuna" else min(trials, count_points(found))


def tuned_keys(study: Study, arm: str) -> list[str]:
    """The keys of an arm of which two values or more can be tried.

    A key with one value is set, not tuned, so it does not pass for a search of it.
    """
    space = space_of(study.tune.keys.get(arm, {}), f"tune.keys.{arm}")
    if (study.tune.trials or 0) < 2:
        return []
    return [
        key
        for key, choice in space.items()
        if not isinstance(choice, Choices) or len(set(choice.values)) > 1
    ]


def names_below(key: str, config: RunConfig) -> list[str]:
    """The keys that a key of the space sets; a UserError if there is none."""
    known = flatten(to_dict(config))
    found = [name for name in known if name.startswith(key[:-1])] if key.endswith(ALL) else [key]
    if not found:
        raise UserError(f"unknown key '{key}': nothing is below it")
    return found


def keys_of(point: Params, config: RunConfig) -> dict[str, object]:
    """What a point sets in an arm whose own config is `config`; `.*` written out.

    `optim.adam_lr` keeps its ratio to `optim.lr` unless the point has both.
    """
    lr = point.get(LR)
    own = rate_keys(config, lr) if isinstance(lr, int | float) else {}
    return own | {name: value for key, value in point.items() for name in names_below(key, config)}


def at_point(study: Study, arm: str, keys: Mapping[str, Any]) -> Study:
    """The study with an arm as it is at a point; its rate is `lr`, as every arm's."""
    spec = study.arms[arm]
    rest = {key: value for key, value in keys.items() if key != LR}
    changed = ArmSpec(spec.recipe, {**spec.set, **rest}, keys.get(LR, spec.lr))
    return replace(study, arms={**study.arms, arm: changed})


def name_of(keys: Mapping[str, Any]) -> str:
    """The name of a point's folders, which depends on what it sets and on nothing else."""
    text = json.dumps(dict(sorted(keys.items())))
    return f"point-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Trial:
    """A point of an arm's space and the results of its runs, one for each of tune.seeds."""

    number: int
    params: Params
    records: Sequence[Record]

    @property
    def status(self) -> str:
        """finished if all its runs are, else what the first other one is."""
        return next((r.status for r in self.records if r.status != "finished"), "finished")

    @property
    def loss(self) -> float:
        """Mean over its runs; infinite if one diverged or failed."""
        return mean_loss(self.records)

    @property
    def figure(self) -> float | None:
        """Mean bits per byte (or nats per token without them), if every run finished."""
        known = [figure(record) for record in self.records if record.status == "finished"]
        return statistics.mean(known) if len(known) == len(self.records) else None


def figure(record: Record) -> float:
    """What a finished run is judged by."""
    found = record.loss if record.bits_per_byte is None else record.bits_per_byte
    assert found is not None
    return found


def edges(space: Space, best: Params, trials: Sequence[Trial]) -> list[str]:
    """The keys whose best value is the lowest or highest of those to try, not of two.

    Of a range without `points`, whose own ends are hardly ever drawn, those of the trials that have
    a result.
    """
    found = []
    for key, choice in space.items():
        values: Sequence[Any] = choice.values if isinstance(choice, Choices) else ()
        if isinstance(choice, Range):
            known = [trial.params[key] for trial in trials if trial.status != "failed"]
            values = (choice.low, choice.high) if choice.points else known
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        enough = isinstance(choice, Range) or len(numbers) == len(values) > 2
        if enough and best[key] in (min(numbers), max(numbers)):
            found.append(key)
    return found


class PointSearch:
    """The search of an arm's best point at a budget; `trials` are its results so far."""

    def __init__(self, out: Path, study: Study, arm: str, tokens: int) -> None:
        self.out, self.study, self.arm, self.tokens = out, study, arm, tokens
        self.config = arm_config(study, arm)
        self.space = arm_space(study, arm)
        self.data = tuning_data(self.config, study.tune.fraction)
        self.trials: list[Trial] = []

    def next(self, turn: int) -> list[Params]:
        """The points to try now; of Optuna `turn` at a time. Empty: the search is over."""
        tune = self.study.tune
        left = (tune.trials or 0) - len(self.trials)
        if left < 1:
            return []
        if tune.method == "optuna":
            return self.drawn(min(left, turn))
        tried = [(trial.params, trial.loss) for trial in self.trials]
        return next_coordinates(self.space, self.start, tried)[:left]

    @property
    def start(self) -> Params:
        """Where a coordinate search begins: the listed values nearest to the arm's own."""
        own = flatten(to_dict(self.config))
        first = {key: own.get(names_below(key, self.config)[0]) for key in self.space}
        return own_point(self.space, first)

    def drawn(self, count: int) -> list[Params]:
        """The next points of Optuna."""
        folder = self.out / RUNS / self.arm / f"tune-{self.tokens}"
        told = [Told(t.params, t.loss) for t in self.trials if t.status != "failed"]
        done = len(self.trials)
        asked = Asked(folder, self.study.tune.keys[self.arm])
        return asked.after(self.space, told, done, count)[done : done + count]

    def plan(self, params: Params) -> list[Planned]:
        """The runs of a point, one for each of tune.seeds."""
        keys = keys_of(params, self.config)
        at = at_point(self.study, self.arm, keys)
        lr = own_rate(at, self.arm, self.tokens)
        return [
            tuning_run(self.out, at, self.arm, self.tokens, lr, seed, self.data, name_of(keys))
            for seed in self.study.tune.seeds
        ]

    def tuned(self) -> Tuned:
        """What the search came to."""
        trials = list({name_of(t.params): t for t in self.trials}.values())  # TPE may repeat one
        errors = tuple(failure_lines(r for trial in trials for r in trial.records))
        rows = [{"params": t.params, "status": t.status, "loss": finite(t.loss)} for t in trials]
        best = min(trials, key=lambda trial: trial.loss)
        if not math.isfinite(best.loss):
            return Tuned(None, self.tokens, {}, False, errors, rows)
        keys = keys_of(best.params, self.config)
        at_edge = edges(self.space, best.params, trials)
        point = Point(
            name_of(keys), best.params, keys, best.loss, at_edge, self.around(best.params)
        )
        lr = own_rate(at_point(self.study, self.arm, keys), self.arm, self.tokens)
        return Tuned(lr, self.tokens, {}, bool(at_edge), errors, rows, point)

    def around(self, best: Params) -> list[dict[str, Any]]:
        """The loss of each neighbour of the best point; none of a range without `points`."""
        listed = {k: c for k, c in self.space.items() if isinstance(c, Choices) or c.points}
        losses = {tuple(trial.params.values()): trial.loss for trial in self.trials}
        return [
            {"key": key, "value": p[key], "loss": finite(losses.get(tuple(p.values()), math.inf))}
            for key, points in neighbours(listed, best).items()
            for p in points
        ]


def finite(loss: float) -> float | None:
    """The loss, None where there is none."""
    return loss if math.isfinite(loss) else None


def tuned_points(
    out: Path,
    study: Study,
    budgets: Sequence[int],
    executor: Executor,
    later: Sequence[Job] = (),
) -> dict[tuple[str, int], Tuned]:
    """The best point of each arm at each budget, by (arm, budget), the searches side by side.

    `later`: the runs that will follow, for the time left.
    """
    at = study.tune.budgets or budgets
    searches = [PointSearch(out, study, arm, tokens) for tokens in at for arm in study.arms]
    turn = max(1, (study.run.workers or available_slots()) // len(searches))
    while due := [(one, params) for one in searches for params in one.next(turn)]:
        plans = [one.plan(params) for one, params in due]
        records = iter(execute([run for runs in plans for run in runs], executor, later=later))
        for (one, params), runs in zip(due, plans, strict=True):
            one.trials.append(Trial(len(one.trials), params, [next(records) for _ in runs]))
    found = {(one.arm, one.tokens): one.tuned() for one in searches}
    return {
        (arm, tokens): carried(study, arm, found[arm, nearest(tokens, at)], tokens)
        for arm in study.arms
        for tokens in budgets
    }


def carried(study: Study, arm: str, found: Tuned, tokens: int) -> Tuned:
    """What was tuned at one budget as it is used at another: with the rates of `tune.transfer`."""
    point, law = found.point, study.tune.transfer
    if point is None or law == "none" or tokens == found.tokens:
        return found
    at = at_point(study, arm, point.keys)
    keys = {**point.keys, **transferred(at, arm, found.tokens, tokens)}
    return replace(found, lr=keys[LR], law=law, point=replace(point, keys=keys, name=name_of(keys)))


def check_points(study: Study, tokens: int) -> Iterator[tuple[str, RunConfig]]:
    """Each arm as it is with one of its values at a time, resolved, for its checks.

    Raises UserError for arms without keys, keys in which arms must be alike, unknown keys, keys
    that overlap, and values, or two values together, that make no run.
    """
    for arm in study.tune.keys:
        if arm not in study.arms:
            raise UserError(f"'tune.keys.{arm}' is not an arm{did_you_mean(arm, study.arms)}")
    for arm in study.arms:
        if arm not in study.tune.keys:
            raise UserError(f"tune.keys has no '{arm}': name keys of every arm, to tune all alike")
        config = arm_config(study, arm)
        set_by: dict[str, str] = {}
        values: dict[str, Sequence[Any]] = {}
        for key, choice in arm_space(study, arm).items():
            for name in names_below(key, config):
                if name in FIXED:
                    raise UserError(f"'tune.keys.{arm}.{name}' cannot be tuned: {FIXED[name]}")
                if name in set_by:
                    raise UserError(
                        f"'tune.keys.{arm}' has {name} in '{set_by[name]}' and in '{key}': keep one"
                    )
                set_by[name] = key
            values[key] = (
                choice.values if isinstance(choice, Choices) else (choice.low, choice.high)
            )
        if study.tune.transfer != "none":
            transferred(study, arm, tokens, tokens)  # refuses what the law does not cover
        for key in values:
            for value in values[key]:
                at = at_point(study, arm, keys_of({key: value}, config))
                yield arm, at_budget(at, arm, tokens)
        for pair in combinations(values, 2):
            for both in product(*(values[key] for key in pair)):
                point = dict(zip(pair, both, strict=True))
                arm_config(at_point(study, arm, keys_of(point, config)), arm)
