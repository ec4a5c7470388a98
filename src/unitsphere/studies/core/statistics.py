"""Statistics of studies: Student's paired t-test, Holm's correction, power laws, speedups.

Paired because a seed fixes the order of the data for both arms, and with it much of the noise.
(A permutation test of n seeds cannot go below p = 2/2^n, a quarter for three seeds.)

Power laws y = A·x^b are least squares of log y over log x, with 95% intervals by the delta method.
anGPT's Appendix I (arXiv 2505.22014) gives the intervals: with the covariance of the fitted
parameters θ and the derivative J of what is predicted by them, σ² = Jᵀ Cov(θ) J, and

    ŷ ± t(α/2, n−p)·σ

Here the prediction is log ŷ: errors of losses, rates and sizes are shares of them, and no interval
reaches below zero. So the fit is linear and J = (1, log x − mean log x) is exact.

A speedup is the tokens to a loss on one curve over those on another, each a monotone cubic through
the mean losses of its budgets; its interval is a bootstrap over seeds.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.interpolate import CubicHermiteSpline, make_interp_spline
from scipy.optimize import isotonic_regression

LEVEL = 0.95
"""Share of the intervals that hold the true value."""
SLOPE_OF_NONE = 1e-30
"""Stands for a slope of 0, which has no logarithm."""

Interval = tuple[float, float]


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
    if not np.std(gaps):
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0, n)
    test: Any = stats.ttest_1samp(gaps, 0.0)  # scipy declares no types
    ends = test.confidence_interval(LEVEL)
    return Difference(mean, float(ends.low), float(ends.high), float(test.pvalue), n)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for being several, in their order (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = highest
    return corrected


LARGEST_LOG = 700.0
"""Of what a law or its interval comes to: beyond it a float is infinite, which JSON has not."""


def bounded_exp(logarithm: float) -> float:
    """exp, of at most LARGEST_LOG: far from scattered points an interval is without bounds."""
    return math.exp(min(logarithm, LARGEST_LOG))


@dataclass(frozen=True)
class PowerLaw:
    """A fitted y = coefficient · x^exponent.

    centre, height: log x and log y in the middle of the points. variance: of the points' log y
    about the law, None for two points, which any law fits. spread: Σ (log x − centre)².
    """

    exponent: float
    centre: float
    height: float
    variance: float | None
    spread: float
    points: int

    def at(self, x: float) -> float:
        """The law's value."""
        return bounded_exp(self.log_at(x))

    def log_at(self, x: float) -> float:
        """The logarithm of the law's value."""
        return self.height + self.exponent * (math.log(x) - self.centre)

    def interval(self, x: float) -> Interval | None:
        """95% interval of the law's value; None for two points."""
        if self.variance is None:
            return None
        jacobian = np.array([1.0, math.log(x) - self.centre])
        sigma = math.sqrt(jacobian @ self.covariance @ jacobian)
        middle, half = self.log_at(x), self.quantile * sigma
        return bounded_exp(middle - half), bounded_exp(middle + half)

    @property
    def coefficient(self) -> float:
        """The law's value at 1."""
        return self.at(1.0)

    @property
    def exponent_interval(self) -> Interval | None:
        """95% interval of the exponent; None for two points."""
        if self.exponent_variance is None:
            return None
        margin = self.quantile * math.sqrt(self.exponent_variance)
        return self.exponent - margin, self.exponent + margin

    @property
    def exponent_variance(self) -> float | None:
        """The squared standard error of the exponent; None for two points."""
        return None if self.variance is None else self.variance / self.spread

    @property
    def covariance(self) -> np.ndarray:
        """Of (log y at the centre, exponent), 2 × 2; NaN for two points."""
        variance = math.nan if self.variance is None else self.variance
        return np.diag([variance / self.points, variance / self.spread])

    @functools.cached_property
    def quantile(self) -> float:
        """Student's t of the points that are more than the law has parameters."""
        return float(stats.t.ppf((1 + LEVEL) / 2, self.points - 2))


def fit(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """The power law through positive points, of which at least two differ in x.

    Raises ValueError otherwise.
    """
    x, y = np.log(xs), np.log(ys)
    if not (np.isfinite(x).all() and np.isfinite(y).all() and len(np.unique(x)) > 1):
        raise ValueError("a power law needs positive points, two of them with different x")
    spread, freedom = len(x) * float(x.var()), len(x) - 2
    # Not scipy's linregress: the standard error of equal y's is NaN in some of its versions.
    slope = float((x - x.mean()) @ (y - y.mean())) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    variance = float(rest @ rest) / freedom if freedom else None
    return PowerLaw(slope, float(x.mean()), float(y.mean()), variance, spread, len(x))


@dataclass(frozen=True)
class ZTest:
    """Whether two exponents are the same: the two-sided p-value of their difference."""

    difference: float
    z: float
    p: float


def z_test(difference: float, variance_a: float, variance_b: float) -> ZTest:
    """The Z-test of anGPT's Appendix I for a difference of exponents with the given variances.

    It takes the variances as known: from few points they are not, and p comes out too small.
    """
    error = math.sqrt(variance_a + variance_b)
    if error == 0:
        z = math.copysign(math.inf, difference) if difference else 0.0
    else:
        z = difference / error
    return ZTest(difference, z, math.erfc(abs(z) / math.sqrt(2)))


def same_exponent(a: PowerLaw, b: PowerLaw) -> ZTest | None:
    """The Z-test of two laws' exponents; None where one of them has no variance."""
    if a.exponent_variance is None or b.exponent_variance is None:
        return None
    return z_test(a.exponent - b.exponent, a.exponent_variance, b.exponent_variance)


ALL_DRAWS = 6
"""Seeds up to which every draw is made (6^6, 462 different ones) rather than DRAWS at random."""
DRAWS = 2000
NOT_REACHED, BELOW = 0.0, math.inf
"""A speedup where the arm never comes to the loss, and where its smallest budget is beyond it."""
NOWHERE = "not reached within the budgets"


@dataclass(frozen=True)
class RatioInterval:
    """Median and 95% interval of a bootstrap; None with a `reason` where there is no number."""

    median: float | None
    low: float | None
    high: float | None
    reason: str | None = None


class LossCurve:
    """Loss over log tokens between an arm's budgets: a monotone cubic that meets each one's loss.

    tokens: rising, [budgets]. loss: mean at each, [budgets], made to fall where it does not.
    """

    def __init__(self, tokens: Sequence[float], loss: Sequence[float]) -> None:
        self.x = np.log(np.asarray(tokens, np.float64))
        self.y = isotonic_regression(loss, increasing=False).x
        self.between = None
        if len(self.x) > 1:
            self.between = CubicHermiteSpline(self.x, self.y, slopes(self.x, self.y))

    def __call__(self, tokens: float) -> float:
        """The loss after a number of tokens between the smallest and the largest budget."""
        return float(self.y[0] if self.between is None else self.between(math.log(tokens)))

    def tokens_to(self, loss: float) -> float:
        """The fewest tokens after which the curve is at `loss` or below.

        Infinite if the largest budget is not enough, 0 if the smallest is already beyond it.
        """
        if self.y[-1] > loss:
            return math.inf
        if self.y[0] < loss:
            return 0.0
        budget = self.x[np.argmax(self.y <= loss)]  # the first that is at or below
        if self.between is None or self(math.exp(budget)) == loss:
            return float(np.exp(budget))
        places = self.between.solve(loss, extrapolate=False)
        # Where the curve is level throughout a piece the place is NaN, and rounding may leave none.
        return float(np.exp(min(places[np.isfinite(places)], default=budget)))


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The slopes of a cubic through a falling curve's points, at these points, [points].

    Each piece has its mean slope in its middle; between the middles, and from them to the ends, the
    logarithm of the slope is a straight line. So it is for a power law, y = E + A·exp(−b·x), whose
    end is therefore met, where PCHIP's parabola is too flat: it makes 1.1 times fewer tokens up to
    1.28. No slope is more than 3 times the lesser mean beside it, so that the curve never rises
    (Fritsch and Carlson 1980).
    """
    means = np.log(np.maximum(np.diff(-y) / np.diff(x), SLOPE_OF_NONE))
    middles = (x[1:] + x[:-1]) / 2
    logs = make_interp_spline(middles, means, k=1)(x) if len(means) > 1 else np.repeat(means, 2)
    lesser = np.minimum(np.append(means[0], means), np.append(means, means[-1]))
    return -np.exp(np.minimum(logs, lesser + math.log(3)))


@dataclass(frozen=True)
class Losses:
    """An arm's losses: tokens [budgets], rising, and values [seeds, budgets]."""

    tokens: Sequence[float]
    values: np.ndarray

    def curve(self, seeds: Sequence[int]) -> LossCurve:
        """The curve through the mean losses of some seeds, each as often as it is named."""
        return LossCurve(self.tokens, self.values[list(seeds)].mean(0))


def speedups(baseline: Losses, arm: Losses, budget: int = -1) -> np.ndarray:
    """The speedup in tokens to the baseline's loss at a budget, of every draw of seeds, [draws].

    Rows of the two arms are of the same seeds. NOT_REACHED and BELOW stand for what lies outside
    of the arm's budgets.
    """
    every = draws(len(baseline.values))
    return np.array([speedup(baseline.curve(d), arm.curve(d), budget) for d in every])


def speedup(baseline: LossCurve, arm: LossCurve, budget: int = -1) -> float:
    """Tokens that the baseline needs to its loss at a budget, divided by those of the arm."""
    loss = float(baseline.y[budget])
    needed = arm.tokens_to(loss)
    return BELOW if needed == 0.0 else baseline.tokens_to(loss) / needed


@functools.cache
def draws(seeds: int) -> tuple[tuple[int, ...], ...]:
    """Draws of as many seeds with replacement: for few seeds each different one, else at random."""
    if seeds <= ALL_DRAWS:
        return tuple(itertools.combinations_with_replacement(range(seeds), seeds))
    random = np.random.default_rng(0)
    return tuple(tuple(row) for row in random.integers(0, seeds, (DRAWS, seeds)).tolist())


def weights(seeds: int) -> list[int]:
    """In how many orders each of the draws may come."""
    if seeds > ALL_DRAWS:
        return [1] * DRAWS
    orders = math.factorial(seeds)
    return [
        orders // math.prod(math.factorial(draw.count(seed)) for seed in set(draw))
        for draw in draws(seeds)
    ]


def interval(ratios: np.ndarray, seeds: int) -> RatioInterval:
    """Median and 95% interval over the draws; of one seed there is no interval."""
    tail = (1 - LEVEL) / 2
    # No means between draws: some may be NOT_REACHED or BELOW.
    every = np.repeat(ratios, weights(seeds))
    low, median, high = np.quantile(every, [tail, 0.5, 1 - tail], method="inverted_cdf").tolist()
    reasons = [why(median, "")]
    if seeds == 1:
        reasons.append("no interval: one seed")
        return RatioInterval(known(median), None, None, "; ".join(filter(None, reasons)))
    if known(median) is not None:
        reasons += [why(low, "low: "), why(high, "high: ")]
    said = "; ".join(filter(None, reasons))
    return RatioInterval(known(median), known(low), known(high), said or None)


def known(ratio: float) -> float | None:
    """The ratio, if it is one."""
    return None if ratio in (NOT_REACHED, BELOW) else ratio


def why(ratio: float, where: str) -> str:
    """Why there is no number."""
    if ratio == NOT_REACHED:
        return f"{where}{NOWHERE}"
    return f"{where}reached before the smallest budget" if ratio == BELOW else ""
