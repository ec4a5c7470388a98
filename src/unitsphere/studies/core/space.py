"""What may be chosen from, and points of it: drawn, or found by coordinate search.

[search]
"model.alpha.init" = [0.05, 0.1, 0.25]                       # these values
"optim.lr" = { low = 1e-3, high = 1e-1, log = true }         # any number between
"model.n_layers" = { low = 2, high = 6 }                     # whole numbers
"train.z_loss" = { low = 0.0, high = 1e-3, points = 3 }      # in a grid: 3 values

Random points and those of TPE are Optuna's (a grid is `itertools.product`: Optuna's visits the
same points in another order). Optuna stores nothing: each time it gets the results of the
trials, from their own folders, so that a search that was interrupted resumes as if it had not been.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unitsphere.config import from_dict, read_json
from unitsphere.errors import UserError
from unitsphere.files import write_text

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

MOST_POINTS = 10_000
"""Of a sweep, and so of one of its ranges."""
SEEDS = 2**32
"""Seeds that NumPy knows, from 0 on."""

Value = bool | int | float | str
Params = dict[str, Value]
"""A point of the space: key -> value."""


@dataclass(frozen=True)
class Choices:
    """Some values, all as likely."""

    values: tuple[Value, ...]

    def grid(self) -> list[Value]:
        """All of them."""
        return list(self.values)

    def take(self, value: Value) -> Value:
        """The value as it is used: as it is."""
        return value


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole if both ends are; `log`: equal ratios are as likely."""

    low: float
    high: float
    log: bool = False
    points: int | None = None
    """of a grid, both ends among them"""
    whole: bool = False

    def grid(self) -> list[Value]:
        """`points` values at equal distances, or ratios."""
        assert self.points is not None
        spaced = np.geomspace if self.log else np.linspace
        return list(dict.fromkeys(map(self.take, spaced(self.low, self.high, self.points))))

    def take(self, number: float) -> Value:
        """The number as it is used: whole, or of four digits but for the ends, and not outside."""
        if self.whole:
            return min(int(self.high), max(int(self.low), round(number)))
        exact = number in (self.low, self.high)  # else `edges` would not know it
        return min(self.high, max(self.low, float(number if exact else f"{number:.4g}")))


Space = dict[str, Choices | Range]


@dataclass(frozen=True)
class _RangeKeys:
    """What a range may say."""

    low: float
    high: float
    log: bool = False
    points: int | None = None


def space_of(table: Mapping[str, object], where: str = "search") -> Space:
    """The space that `[search]` describes; keys may be dotted or nested.

    Raises UserError for anything that is neither a list of values nor a range.
    """
    space: Space = {}
    for name, entry in table.items():
        key = f"{where}.{name}"
        if isinstance(entry, list):
            space[name] = choices_of(entry, key)
        elif isinstance(entry, Mapping) and {"low", "high"} & set(entry):
            space[name] = range_of(entry, key)
        elif isinstance(entry, Mapping):
            inner = space_of(entry, key)
            space |= {f"{name}.{rest}": choice for rest, choice in inner.items()}
        else:
            raise UserError(
                f"'{key}' must be a list of values, or a range {{ low = …, high = … }}: {entry!r}"
            )
    return space


def choices_of(values: list[object], key: str) -> Choices:
    """A list of scalars, none of them twice."""
    found = [value for value in values if isinstance(value, bool | int | float | str)]
    if not values or len(found) < len(values) or len(set(map(repr, found))) < len(found):
        raise UserError(f"'{key}' must list different numbers, strings, true or false: {values!r}")
    return Choices(tuple(found))


def range_of(entry: Mapping[str, object], key: str) -> Range:
    """A range; whole if its ends are written without a point."""
    for end in ("low", "high"):
        if end not in entry:
            raise UserError(f"'{key}' has no '{end}'")
    keys = from_dict(_RangeKeys, dict(entry), f"{key}.")
    if not (math.isfinite(keys.low) and math.isfinite(keys.high) and keys.low < keys.high):
        raise UserError(f"'{key}' must have a 'low' below its 'high': {keys.low} and {keys.high}")
    if keys.log and keys.low <= 0:
        raise UserError(f"'{key}.low' must be above 0 with log = true: {keys.low}")
    if keys.points is not None and not 2 <= keys.points <= MOST_POINTS:
        raise UserError(f"'{key}.points' must be from 2 to {MOST_POINTS}: {keys.points}")
    whole = isinstance(entry["low"], int) and isinstance(entry["high"], int)
    return Range(keys.low, keys.high, keys.log, keys.points, whole)


def grid_values(space: Space, where: str = "search") -> list[list[Value]]:
    """The values of each key in a grid."""
    for key, choice in space.items():
        if isinstance(choice, Range) and choice.points is None:
            raise UserError(f"a grid needs '{where}.{key}.points', or a list of values")
    return [choice.grid() for choice in space.values()]


def without_grid(space: Space) -> Space:
    """The space as points are drawn from it: the `points` of a range are of a grid only."""
    return {
        key: replace(choice, points=None) if isinstance(choice, Range) else choice
        for key, choice in space.items()
    }


def count_points(space: Space) -> int:
    """How many combinations there are."""
    return math.prod(map(len, grid_values(space)))


def grid_points(space: Space) -> list[Params]:
    """Every combination; the last key changes fastest."""
    values = grid_values(space)
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*values)]


def own_point(space: Space, own: Mapping[str, object]) -> Params:
    """The point of the grid nearest to some values; the first value of a key that has none."""
    return {
        key: nearest_value(values, own.get(key))
        for key, values in zip(space, grid_values(space), strict=True)
    }


def nearest_value(values: Sequence[Value], own: object) -> Value:
    """The nearest of some values: of positive numbers by ratio, of others by difference."""
    if own in values or not isinstance(own, int | float):
        return next((value for value in values if value == own), values[0])
    numbers = [value for value in values if isinstance(value, int | float)]
    positive = own > 0 and min(numbers, default=0) > 0
    gaps = [abs(math.log(n / own) if positive else n - own) for n in numbers]
    return numbers[gaps.index(min(gaps))] if gaps else values[0]


def neighbours(space: Space, point: Params) -> dict[str, list[Params]]:
    """By key, the points of the grid next to one: the next numbers, or all other values."""
    found = {}
    for key, values in zip(space, grid_values(space), strict=True):
        near = [value for value in values if abs(distance(values, point[key], value)) == 1]
        found[key] = [{**point, key: value} for value in near]
    return found


def distance(values: Sequence[Value], one: Value, other: Value) -> int:
    """Steps from one of the values to another; between any two of them 1 unless all are numbers."""
    if any(isinstance(value, str | bool) for value in values):
        return int(one != other)
    order = sorted(values, key=float)
    return order.index(other) - order.index(one)


def next_coordinates(
    space: Space, start: Params, tried: Sequence[tuple[Params, float]]
) -> list[Params]:
    """The next points of a coordinate search, by the losses of those that were tried.

    It follows a key as long as a neighbour is better, then the next key. Where no neighbour of the
    best is better, it takes the untried point that is the fewest steps away. None are left: empty.
    """
    losses = {tuple(point.values()): loss for point, loss in tried}

    def loss(point: Params) -> float:
        return losses[tuple(point.values())]

    best, stuck, keys = start, 0, list(space)
    if tuple(start.values()) not in losses:
        return [start]
    while stuck < len(space):
        around = neighbours(space, best)[keys[0]]
        untried = [point for point in around if tuple(point.values()) not in losses]
        if untried:
            return untried
        lower = min([best, *around], key=loss)
        if loss(lower) < loss(best):
            best, stuck = lower, 0
            continue
        keys, stuck = [*keys[1:], keys[0]], stuck + 1
        lowest = min((point for point, _ in tried), key=loss)
        if stuck == len(space) and loss(lowest) < loss(best):
            best, stuck = lowest, 0
    values = dict(zip(space, grid_values(space), strict=True))
    rest = [point for point in grid_points(space) if tuple(point.values()) not in losses]
    rest.sort(key=lambda p: sum(abs(distance(values[k], best[k], p[k])) for k in space))
    return rest[:1]


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

    own = (seed * 100_003 + asked) % SEEDS
    return drawn(space, told, count, TPESampler(seed=own, constant_liar=True))


def drawn(space: Space, told: Sequence[Told], count: int, sampler: "BaseSampler") -> list[Params]:
    """Points of a sampler that uses the results of earlier trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    distributions = {key: distribution(choice) for key, choice in space.items()}
    study.add_trials([frozen(trial, distributions) for trial in told])
    points = [study.ask(distributions).params for _ in range(count)]
    return [{key: space[key].take(point[key]) for key in space} for point in points]


def distribution(choice: Choices | Range) -> "BaseDistribution":
    """A choice in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

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


@dataclass(frozen=True)
class Asked:
    """The points that were drawn, kept in a folder: another version of Optuna may draw others.

    `search` is what they are drawn from, as the study has it, and `seed` what draws them.
    """

    folder: Path
    search: Mapping[str, object]
    seed: int = 0

    @property
    def path(self) -> Path:
        """The file that keeps them."""
        return self.folder / "asked.json"

    def read(self) -> list[Params]:
        """Those drawn so far; a `UserError` if they are of another search."""
        if not self.path.exists():
            return []
        kept, search = read_json(self.path), json.loads(json.dumps(self.search))
        same = isinstance(kept, dict) and kept.get("search") == search
        if not same or kept.get("seed", self.seed) != self.seed:  # earlier files have no seed
            raise UserError(f"{self.folder} holds trials of another search: delete it")
        return kept["points"]

    def keep(self, points: Sequence[Params]) -> None:
        """Write down all that were drawn, and what they were drawn from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {"search": self.search, "seed": self.seed, "points": points}
        write_text(self.path, json.dumps(kept, indent=2) + "\n")

    def after(self, space: Space, told: Sequence[Told], done: int, count: int) -> list[Params]:
        """All points; once `done` of them are done, with `count` more by TPE.

        `told`: the results of those that are done, without those that failed.
        """
        asked = self.read()
        if len(asked) <= done and count > 0:
            asked = [*asked, *next_points(space, told, count, self.seed, done)]
            self.keep(asked)
        return asked
