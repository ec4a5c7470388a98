"""How many times fewer tokens an arm needs than another to the same loss.

Each arm has a loss at each budget, from runs of their own. Between budgets its curve is PCHIP
(Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980; weights as Fritsch and Butland, 1984) of the
loss over log tokens, through the losses made monotone by isotonic regression. PCHIP because it
meets every budget's loss, never overshoots, so that every loss is reached once, and follows the
bend: chords of a convex curve lie above it and overstate the tokens to a loss. Isotonic regression
because noise may let a larger budget come out worse. Nothing is extrapolated.

Speedups are paired over seeds: a bootstrap draws seeds with replacement, the same for both arms,
which share the order of the data, and takes the ratio from the mean losses of the draw.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

ALL_DRAWS = 6
"""Seeds up to which every draw is made (6^6, 462 different ones) rather than DRAWS at random."""
DRAWS = 2000
LEVEL = 0.95
NOT_REACHED, BELOW = 0.0, math.inf
"""A speedup where the arm never comes to the loss, and where its smallest budget is beyond it."""
NOWHERE = "not reached within the budgets"


@dataclass(frozen=True)
class Interval:
    """Median and 95% interval of a bootstrap; None with a `reason` where there is no number."""

    median: float | None
    low: float | None
    high: float | None
    reason: str | None = None


class LossCurve:
    """Loss over log tokens between an arm's budgets: monotone, meeting each budget's loss.

    tokens: rising, [budgets]. loss: mean at each, [budgets], made to fall where it does not.
    """

    def __init__(self, tokens: Sequence[float], loss: Sequence[float]) -> None:
        self.x = np.log(np.asarray(tokens, np.float64))
        self.y = isotonic_regression(loss, increasing=False).x
        self.between = PchipInterpolator(self.x, self.y) if len(self.x) > 1 else None

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


def interval(ratios: np.ndarray, seeds: int) -> Interval:
    """Median and 95% interval over the draws; of one seed there is no interval."""
    tail = (1 - LEVEL) / 2
    # No means between draws: some may be NOT_REACHED or BELOW.
    every = np.repeat(ratios, weights(seeds))
    low, median, high = np.quantile(every, [tail, 0.5, 1 - tail], method="inverted_cdf").tolist()
    reasons = [why(median, "")]
    if seeds == 1:
        reasons.append("no interval: one seed")
        return Interval(known(median), None, None, "; ".join(filter(None, reasons)))
    if known(median) is not None:
        reasons += [why(low, "low: "), why(high, "high: ")]
    said = "; ".join(filter(None, reasons))
    return Interval(known(median), known(low), known(high), said or None)


def known(ratio: float) -> float | None:
    """The ratio, if it is one."""
    return None if ratio in (NOT_REACHED, BELOW) else ratio


def why(ratio: float, where: str) -> str:
    """Why there is no number."""
    if ratio == NOT_REACHED:
        return f"{where}{NOWHERE}"
    return f"{where}reached before the smallest budget" if ratio == BELOW else ""
