"""What may be chosen from.

[search]
"model.alpha.init" = [0.05, 0.1, 0.25]                       # these values
"optim.lr" = { low = 1e-3, high = 1e-1, log = true }         # any number between
"model.n_layers" = { low = 2, high = 6 }                     # whole numbers
"train.z_loss" = { low = 0.0, high = 1e-3, points = 3 }      # in a grid: 3 values
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unitsphere.config import from_dict
from unitsphere.errors import UserError

MOST_POINTS = 10_000
"""Of a sweep, and so of one of its ranges."""

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
        """The number as it is used: whole, or of four digits, and never outside."""
        if self.whole:
            return min(int(self.high), max(int(self.low), round(number)))
        return min(self.high, max(self.low, float(f"{number:.4g}")))


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


def count_points(space: Space) -> int:
    """How many combinations there are."""
    return math.prod(map(len, grid_values(space)))


def grid_points(space: Space) -> list[Params]:
    """Every combination; the last key changes fastest."""
    values = grid_values(space)
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*values)]
