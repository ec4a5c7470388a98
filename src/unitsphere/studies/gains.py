"""What an arm gains over the baseline: its loss at equal tokens, and its speedup to equal loss."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unitsphere.data.prepare import tokenizer_spec
from unitsphere.studies.core.execute import Record, timing
from unitsphere.studies.core.fairness import Finding
from unitsphere.studies.core.statistics import (
    NOWHERE,
    Difference,
    Losses,
    draws,
    holm,
    interval,
    paired,
    speedups,
)
from unitsphere.studies.core.tune import Tuned
from unitsphere.training.config import RunConfig, steps_for
from unitsphere.training.forecast import ModelSize, size_of

SIGNIFICANT = 0.05
OTHER_TOKENS = "another tokenizer, so nats per token do not compare: read bits per byte"
NOTHING: dict[str, Any] = {"median": None, "low": None, "high": None}


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

    def config(self, arm: str, budget: int) -> RunConfig:
        """An arm's config at a budget, where another point may have been its best."""
        runs = (self.records.get((arm, budget, seed)) for seed in self.seeds)
        return next((run.planned.config for run in runs if run is not None), self.configs[arm])

    def other(self, arm: str, number: Callable[[RunConfig], int]) -> dict[str, Any]:
        """No figure, and why, where the arm or the baseline has not one `number` at all budgets."""
        for name in (self.baseline, arm):
            if len({number(self.config(name, budget)) for budget in self.budgets}) > 1:
                return NOTHING | {"reason": f"{name} was tuned to other values at other budgets"}
        return {}

    def tokens(self, arm: str, budget: int) -> int:
        """The tokens of an arm's runs at a budget, which is rounded to whole steps."""
        batch = self.config(arm, budget).train.batch_tokens
        return steps_for(budget, batch) * batch

    def other_tokens(self, arm: str) -> str:
        """Why an arm's nats per token do not compare with the baseline's; empty if they do."""
        specs = {tokenizer_spec(self.configs[name].data) for name in (self.baseline, arm)}
        return "" if len(specs) == 1 else OTHER_TOKENS

    def losses(self, arm: str, tokens: int, seeds: Sequence[int]) -> list[float]:
        """The losses of finished runs."""
        found = [self.finished(arm, tokens, seed) for seed in seeds]
        return [record.loss for record in found if record is not None and record.loss is not None]


def differences(found: Comparison, others: Sequence[str]) -> list[dict[str, Any]]:
    """Each arm's loss against the baseline's at equal tokens; p corrected for several arms."""
    rows = []
    for budget in found.budgets:
        tests: dict[str, Difference] = {}
        for arm in others:
            seeds = found.common(arm, [budget])
            if seeds and not found.other_tokens(arm):
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
    if why := found.other_tokens(arm):
        return f"{place}: {why}"
    if test is None:
        return f"{place}: no seed of which both finished, nothing can be said"
    side, p = "lower" if test.mean < 0 else "higher", corrected.get(arm)
    if p is None or test.low is None or test.high is None:
        return (
            f"{place}: loss {side} by {abs(test.mean):.4f} in one seed, nothing can be said of it"
        )
    sign = -1 if test.mean < 0 else 1
    ends = sorted(sign * end for end in (test.low, test.high))
    several = f", corrected for {len(corrected)} arms" if len(corrected) > 1 else ""
    alone = "95% interval of only this arm" if several else "95% interval"
    verdict = (
        "more than the seeds explain" if p < SIGNIFICANT else "no more than the seeds may explain"
    )
    return (
        f"{place}: loss {side} by {abs(test.mean):.4f} ({alone} {ends[0]:.4f} to "
        f"{ends[1]:.4f}; paired t-test over {test.n} seeds, p = {p:.2g}{several}): {verdict}"
    )


def speedup_of(found: Comparison, arm: str, sizes: Mapping[str, ModelSize]) -> dict[str, Any]:
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
    why = found.other_tokens(arm)
    if why or not seeds:
        reason = {"reason": why or "no seed of which both finished at every budget"}
        return row | dict.fromkeys(("tokens", "steps", "flops", "time"), NOTHING | reason)
    base, own = (losses_of(found, name, seeds) for name in (found.baseline, arm))
    ratio = speedups(base, own)
    flops = sizes[found.baseline].flops_per_token / sizes[arm].flops_per_token
    batches = [found.configs[a].train.batch_tokens for a in (arm, found.baseline)]
    row |= {
        "to": target(base),
        "tokens": as_dict(ratio, len(seeds)),
        "steps": found.other(arm, lambda c: c.train.batch_tokens)
        or as_dict(ratio * (batches[0] / batches[1]), len(seeds)),
        "flops": found.other(arm, lambda c: size_of(c).flops_per_token)
        or as_dict(ratio * flops, len(seeds)),
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
