"""The times against nanochat in docs/results/versus.md follow from the runs in its JSON."""

from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy import stats

from unitsphere.config import read_json

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = (RESULTS / "versus.md").read_text()
BIGRAMS = read_json(RESULTS / "versus" / "bigrams.json")["runs"]
IN_BF16 = read_json(RESULTS / "versus" / "bf16.json")["runs"]
RUNS = read_json(RESULTS / "versus" / "wiki.json")["runs"] | BIGRAMS | IN_BF16
OURS = [
    "gpt-plus-offset-2470-0.004-decay-1.4",
    "gpt-plus-offset-4300-0.004-decay-0.95",
    "gpt-plus-offset-7400-0.004-decay-0.67",
]
PERI = [
    "gpt-plus-peri-2470-0.004-decay-1.4",
    "gpt-plus-peri-4300-0.004-decay-0.966",
    "gpt-plus-peri-6200-0.004-decay-0.67",
]
NANOCHAT = {rate: RUNS[f"nanochat-kept-memory-5560-{rate}"] for rate in ("0.16", "0.115")}


def between(names: list[str], loss: float, key: str) -> float:
    """Seconds or steps at a loss, linear in their logarithm between two runs."""
    runs = [RUNS[name] for name in names]
    first, last = next(
        pair for pair in pairwise(runs) if pair[0]["loss"] >= loss and pair[1]["loss"] <= loss
    )
    share = (first["loss"] - loss) / (first["loss"] - last["loss"])
    return exp(log(first[key]) + share * log(last[key] / first[key]))


def missing(names: list[str], at: float, key: str, loss: float) -> float:
    """By how much the loss after so many seconds or steps is above `loss`."""
    runs = [RUNS[name] for name in names]
    first, last = next(pair for pair in pairwise(runs) if pair[0][key] <= at <= pair[1][key])
    share = log(at / first[key]) / log(last[key] / first[key])
    return first["loss"] + share * (last["loss"] - first["loss"]) - loss


def start_and_step(few: str, more: str) -> tuple[float, float]:
    """Seconds to start and per step, from a run of 20 and one of 120 steps."""
    step = (RUNS[more]["cpu"] - RUNS[few]["cpu"]) / 100
    return RUNS[few]["cpu"] - 20 * step, step


OUR_START, OUR_STEP = start_and_step("gpt-plus-offset-20-0.004", "gpt-plus-offset-120-0.004")
START, STEP = start_and_step("nanochat-20-0.16-later", "nanochat-120-0.16-later")
BY_STEP = START + 5560 * STEP


@pytest.mark.parametrize("names", [OURS, PERI], ids=["plain", "with the norms"])
@pytest.mark.parametrize("rate", NANOCHAT)
def test_the_ratios_between_two_runs_are_on_the_page(names, rate):
    run = NANOCHAT[rate]
    seconds = between(names, run["loss"], "cpu")
    said = f"| {seconds:.0f} s | {run['cpu']:.0f} s | {seconds / run['cpu']:.2f} |"
    assert said in PAGE


@pytest.mark.parametrize(
    ("names", "who"),
    [
        ([OURS[-1], "gpt-plus-offset-13250-0.004-decay-0.45"], "ours"),
        ([PERI[-1], "gpt-plus-peri-13000-0.004-decay-0.45"], "with Peri-LN's norms"),
    ],
)
def test_the_times_for_the_loss_after_30_minutes_are_on_the_page(names, who):
    run = RUNS["nanochat-kept-memory-11050-0.115"]
    seconds = between(names, run["loss"], "cpu")
    said = f"{seconds:,.0f} s | {run['cpu']:,.0f} s | {seconds / run['cpu']:.2f} |"
    assert f"| {who}, nanochat's loss after 30 minutes | between two runs | {said}" in PAGE


@pytest.mark.parametrize(
    ("names", "who"),
    [(OURS, "ours, the same losses"), (PERI, "with Peri-LN's norms, the same losses")],
)
def test_the_ratios_by_time_per_step_are_on_the_page(names, who):
    steps = [between(names, run["loss"], "steps") for run in NANOCHAT.values()]
    seconds = [OUR_START + OUR_STEP * n for n in steps]
    ours = ", ".join(f"{x:.0f} s" for x in seconds)
    ratios = ", ".join(f"{x / BY_STEP:.2f}" for x in seconds)
    assert f"| {who} | by time per step | {ours} | {BY_STEP:.0f} s | {ratios} |" in PAGE


@pytest.mark.parametrize(("names", "who"), [(OURS, "ours"), (PERI, "with Peri-LN's norms")])
def test_what_is_missing_at_half_of_the_time_is_on_the_page(names, who):
    cells = []
    for run in NANOCHAT.values():
        seconds = missing(names, run["cpu"] / 2, "cpu", run["loss"])
        steps = missing(names, (BY_STEP / 2 - OUR_START) / OUR_STEP, "steps", run["loss"])
        cells.append(f"{seconds:.3f}; {steps:.3f}")
    assert f"| {who} | {cells[0]} | {cells[1]} |" in PAGE


def test_the_times_with_bigrams_follow_from_their_runs():
    ours = [name for name in BIGRAMS if name.startswith("gpt-plus-bigrams-2") and "decay" in name]
    nanochat = BIGRAMS["nanochat-2850-0.115"]
    seconds, steps = (between(ours, nanochat["loss"], key) for key in ("cpu", "steps"))
    own, peer = (
        start_and_step(f"{name}-in-turn".format(20), f"{name}-in-turn".format(120))
        for name in ("gpt-plus-bigrams-{}-0.004", "nanochat-{}-0.115")
    )
    ours_by_step, its = own[0] + steps * own[1], peer[0] + nanochat["steps"] * peer[1]
    assert f"3.054 after {seconds:.0f} s, {seconds / nanochat['cpu']:.2f} of 941 s" in PAGE
    assert f"needs {ours_by_step:.0f} s where nanochat needs {its:,.0f}: " in PAGE
    assert f"{its:,.0f}: {ours_by_step / its:.2f}." in PAGE
    assert f"3.067, nanochat's loss at rate 0.16, after {between(ours, 3.067, 'cpu'):.0f} s" in PAGE


def three(runs, name):
    """The runs of three seeds: the contender's own, 1 and 2."""
    return [runs[name + seed] for seed in ("", "-seed-1", "-seed-2")]


@pytest.mark.parametrize(
    ("name", "longer", "often"),
    [
        ("gpt-plus-peri-4300-0.004-decay-0.966", "gpt-plus-peri-6200-0.004-decay-0.67", 2),
        ("gpt-plus-bigrams-6300-0.004-decay-0.58", "gpt-plus-bigrams-5300-0.004-decay-0.7", 3),
    ],
)
def test_the_times_in_bf16_follow_from_three_seeds_of_both(name, longer, often):
    """95% by Welch's t-test of the losses, at what ours gains with time in one seed."""
    every = RUNS | IN_BF16
    ours, its = three(every, name), three(every, "nanochat-5560-0.115")
    (own, start), (peer, end) = (
        [mean(run[key] for run in runs) for key in ("loss", "cpu")] for runs in (ours, its)
    )
    slope = (every[longer]["loss"] - ours[0]["loss"]) / log(ours[0]["cpu"] / every[longer]["cpu"])
    losses = [[run["loss"] for run in runs] for runs in (ours, its)]
    span = stats.ttest_ind(*losses, equal_var=False).confidence_interval()
    low, middle, high = (
        start * exp(difference / slope) for difference in (span.low, own - peer, span.high)
    )
    assert f"{own:.3f} ± {stdev(losses[0]) / 3**0.5:.3f}" in PAGE
    assert f"{peer:.3f} ± {stdev(losses[1]) / 3**0.5:.3f}" in PAGE
    assert f"needs {middle:.0f} s for {peer:.3f}: " in PAGE
    assert PAGE.count(f"{middle / end:.2f} ({low / end:.2f}–{high / end:.2f})") == often
