"""Medians of interleaved rounds, their bootstrap intervals, and what is only noise."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A median and the 95% interval of it under resampling of the rounds."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of `values` and its bootstrap interval, the same for the same values."""
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Interval(statistics.median(values), float(low), float(high))


def ratios(times: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Of the ratios of two arms' times, round by round."""
    return interval([time / base for time, base in zip(times, baseline, strict=True)])


def noise_floor(same: Interval) -> float:
    """How far from 1 a ratio may lie by chance: what the interval of two copies' ratio reaches."""
    return max(abs(same.low - 1), abs(same.high - 1))


def is_tie(ratio: Interval, floor: float) -> bool:
    """Whether a ratio is no further from 1 than two copies of one arm are from each other."""
    return abs(ratio.median - 1) <= floor


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items in the order of round number `by`: each is first equally often."""
    start = by % len(items)
    return [*items[start:], *items[:start]]
