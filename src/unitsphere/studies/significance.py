"""Whether two arms differ by more than their seeds do: Student's paired t-test, and Holm's step.

Paired because a seed fixes the order of the data for both arms, and with it much of the noise.
(A permutation test of n seeds cannot go below p = 2/2^n, a quarter for three seeds.)
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The mean of arm − baseline over n seeds, with its 95% interval and two-sided p.

    Interval and p are None for one seed.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int


def paired(baseline: Sequence[float], arm: Sequence[float]) -> Difference:
    """The paired t-test of figures seed by seed."""
    gaps = np.asarray(arm, np.float64) - np.asarray(baseline, np.float64)
    n, mean = len(gaps), float(np.mean(gaps))
    if n < 2:
        return Difference(mean, None, None, None, n)
    error = float(np.std(gaps, ddof=1)) / math.sqrt(n)
    if error == 0:
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0, n)
    half = t_quantile(LEVEL, n - 1) * error
    return Difference(mean, mean - half, mean + half, t_test(mean / error, n - 1), n)


def t_test(t: float, df: float) -> float:
    """P(|T| ≥ |t|) for Student's t with `df` degrees of freedom.

    With T = √df·tan θ the density of θ is proportional to cos^(df−1) θ: a smooth integral over a
    bounded range, by Gauss–Legendre.
    """
    points, weights = legendre()

    def mass(start: float) -> float:
        half = (math.pi / 2 - start) / 2
        theta = start + half * (points + 1)
        return float(half * np.sum(weights * np.cos(theta) ** (df - 1)))

    return mass(math.atan(abs(t) / math.sqrt(df))) / mass(0.0)


@functools.cache
def legendre() -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for integrals from -1 to 1."""
    return np.polynomial.legendre.leggauss(80)


def t_quantile(level: float, df: float) -> float:
    """The t that is exceeded, on either side, with probability `level`."""
    low, high = 0.0, 1.0
    while t_test(high, df) > level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_test(middle, df) > level else (low, middle)
    return high


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for being several, in their order (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = highest
    return corrected
