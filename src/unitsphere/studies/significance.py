"""Whether two arms differ by more than their seeds do: Student's paired t-test, and Holm's step.

Paired because a seed fixes the order of the data for both arms, and with it much of the noise.
(A permutation test of n seeds cannot go below p = 2/2^n, a quarter for three seeds.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

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
    half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean / error)))
    return Difference(mean, mean - half, mean + half, p, n)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for being several, in their order (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = highest
    return corrected
