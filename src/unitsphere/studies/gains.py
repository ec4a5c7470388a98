"""What an arm gains over the baseline: its loss at equal tokens, and its speedup to equal loss."""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.fairness import Finding, timing
from unitsphere.studies.core.plan import Size
from unitsphere.studies.core.statistics import LEVEL, Difference, holm, paired
from unitsphere.studies.core.tune import Tuned
from unitsphere.training.config import RunConfig, steps_for

ALL_DRAWS = 6
"""Seeds up to which every draw is made (6^6, 462 different ones) rather than DRAWS at random."""
DRAWS = 2000
NOT_REACHED, BELOW = 0.0, math.inf
"""A speedup where the arm never comes to the loss, and where its smallest budget is beyond it."""
NOWHERE = "not reached within the budgets"


@dataclass(frozen=True)
class Comparison:
    """What was run: configs by arm (at the smallest budget), rates by (arm, budget), and records by
    (arm, budget, seed).
    """

    baseline: str
    budgets: Sequence[int]
    seeds: Sequence[int]
    configs: Mapping[str, RunConfig]
    rates: Mapping[tuple[str, int], Tuned]
    records: Mapping[tuple[str, int, int], Record]

    def finished(self, arm: str, tokens: int, seed: int) -> Record | None:
        """A run's record, if it came to its end."""
        record = self.records.get((arm, tokens, seed))
        return record if record is not None and record.status == "finished" else None

    def common(self, arm: str, budgets: Sequence[int]) -> list[int]:
        """The seeds of which both the baseline and the arm finished at all the budgets."""
        return [
            seed
            for seed in self.seeds
            if all(self.finished(a, t, seed) for a in (self.baseline, arm) for t in budgets)
        ]

    def tokens(self, arm: str, budget: int) -> int:
        """The tokens of an arm's runs at a budget, which is rounded to whole steps."""
        batch = self.configs[arm].train.batch_tokens
        return steps_for(budget, batch) * batch

    def losses(self, arm: str, tokens: int, seeds: Sequence[int]) -> list[float]:
        """The losses of finished runs."""
        found = [self.finished(arm, tokens, seed) for seed in seeds]
        return [record.loss for record in found if record is not None and record.loss is not None]


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


SIGNIFICANT = 0.05
NOTHING: dict[str, Any] = {"median": None, "low": None, "high": None}


def differences(found: Comparison, others: Sequence[str]) -> list[dict[str, Any]]:
    """Each arm's loss against the baseline's at equal tokens; p corrected for several arms."""
    rows = []
    for budget in found.budgets:
        tests: dict[str, Difference] = {}
        for arm in others:
            seeds = found.common(arm, [budget])
            if seeds:
                pair = (found.losses(name, budget, seeds) for name in (found.baseline, arm))
                tests[arm] = paired(*pair)
        known = {arm: test.p for arm, test in tests.items() if test.p is not None}
        corrected = dict(zip(known, holm(list(known.values())), strict=True))
        rows += [
            {
                "arm": arm,
                "baseline": found.baseline,
                "budget": budget,
                "tokens": found.tokens(arm, budget),
                "loss": dataclasses.asdict(tests[arm]) | {"p_corrected": corrected.get(arm)}
                if arm in tests
                else None,
                "statement": statement(found, arm, budget, tests.get(arm), corrected),
            }
            for arm in others
        ]
    return rows


def statement(
    found: Comparison,
    arm: str,
    budget: int,
    test: Difference | None,
    corrected: Mapping[str, float],
) -> str:
    """The difference in plain words."""
    place = f"{arm} against {found.baseline} at {found.tokens(arm, budget):,} tokens"
    if test is None:
        return f"{place}: no seed of which both finished, nothing can be said"
    side, p = "lower" if test.mean < 0 else "higher", corrected.get(arm)
    if p is None or test.low is None or test.high is None:
        return (
            f"{place}: loss {side} by {abs(test.mean):.4f} in one seed, nothing can be said of it"
        )
    ends = sorted(abs(end) if end * test.mean > 0 else -abs(end) for end in (test.low, test.high))
    several = f", corrected for {len(corrected)} arms" if len(corrected) > 1 else ""
    alone = "95% interval of only this arm" if several else "95% interval"
    verdict = (
        "more than the seeds explain" if p < SIGNIFICANT else "no more than the seeds may explain"
    )
    return (
        f"{place}: loss {side} by {abs(test.mean):.4f} ({alone} {ends[0]:.4f} to "
        f"{ends[1]:.4f}; paired t-test over {test.n} seeds, p = {p:.2g}{several}): {verdict}"
    )


def speedup_of(found: Comparison, arm: str, sizes: Mapping[str, Size]) -> dict[str, Any]:
    """How many times fewer tokens, steps, FLOPs and seconds to the baseline's last loss.

    Where the arm does not come to it, `behind` is the baseline's speedup to the arm's last loss.
    Of an arm that is there before its smallest budget nothing is said.
    """
    seeds = found.common(arm, found.budgets)
    row: dict[str, Any] = {
        "arm": arm,
        "baseline": found.baseline,
        "seeds": len(seeds),
    }
    if not seeds:
        reason = {"reason": "no seed of which both finished at every budget"}
        return row | dict.fromkeys(("tokens", "steps", "flops", "time"), NOTHING | reason)
    base, own = (losses_of(found, name, seeds) for name in (found.baseline, arm))
    ratio = speedups(base, own)
    flops = sizes[found.baseline].flops_per_token / sizes[arm].flops_per_token
    batches = [found.configs[a].train.batch_tokens for a in (arm, found.baseline)]
    row |= {
        "to": target(base),
        "tokens": as_dict(ratio, len(seeds)),
        "steps": as_dict(ratio * (batches[0] / batches[1]), len(seeds)),
        "flops": as_dict(ratio * flops, len(seeds)),
        "time": time_speedup(found, arm, seeds, ratio),
        "by_budget": [
            {"tokens": tokens} | as_dict(speedups(base, own, place), len(seeds))
            for place, tokens in enumerate(base.tokens)
        ],
    }
    if NOWHERE in row["tokens"].get("reason", "") and row["tokens"]["median"] is None:
        row["behind"] = as_dict(speedups(own, base), len(seeds))
    return row


def target(base: Losses) -> dict[str, float]:
    """The loss that is asked for, and the tokens after which the baseline has it.

    Those of its last budget; where that came out worse than an earlier one, the mean of both and
    the earlier.
    """
    curve = base.curve(range(len(base.values)))
    loss = float(curve.y[-1])
    return {"tokens": round(curve.tokens_to(loss)), "loss": loss}


def rising(found: Comparison) -> Iterator[Finding]:
    """Arms that are worse after more tokens."""
    for arm in found.configs:
        seeds = found.common(arm, found.budgets)
        means = losses_of(found, arm, seeds).values.mean(0) if seeds else []
        for (small, first), (large, then) in pairwise(zip(found.budgets, means, strict=False)):
            if then > first:
                text = f"{arm}: {then:.4f} after {large:,} tokens, {first:.4f} after {small:,}"
                yield Finding("rising", f"{text}; its speedups rest on the mean of both")


def losses_of(found: Comparison, arm: str, seeds: Sequence[int]) -> Losses:
    """Losses of an arm over its budgets."""
    values = np.array([found.losses(arm, budget, seeds) for budget in found.budgets]).T
    return Losses([found.tokens(arm, budget) for budget in found.budgets], values)


def time_speedup(
    found: Comparison, arm: str, seeds: Sequence[int], ratio: np.ndarray
) -> dict[str, Any]:
    """The speedup in measured time: that in tokens times the ratio of seconds per token, by draws.

    None where the arms were not timed alike.
    """
    why = timing(found.records.values())
    if why:
        return NOTHING | {"reason": why}
    costs = [
        np.array([seconds_per_token(found, name, seed) for seed in seeds])
        for name in (found.baseline, arm)
    ]
    picked = [list(draw) for draw in draws(len(seeds))]
    factor = np.array([costs[0][draw].mean() / costs[1][draw].mean() for draw in picked])
    return as_dict(ratio * factor, len(seeds))


def seconds_per_token(found: Comparison, arm: str, seed: int) -> float:
    """Mean over the budgets of a seed's runs, each by the median of its records."""
    runs = [found.finished(arm, tokens, seed) for tokens in found.budgets]
    rates = [run.tokens_per_second for run in runs if run is not None and run.tokens_per_second]
    return statistics.mean(1 / rate for rate in rates)


def as_dict(ratio: np.ndarray, seeds: int) -> dict[str, Any]:
    """Median and interval, and the reason where one is None."""
    found = dataclasses.asdict(interval(ratio, seeds))
    return {key: value for key, value in found.items() if key != "reason" or value}
