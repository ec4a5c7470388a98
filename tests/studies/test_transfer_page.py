"""The exponents of docs/results/transfer.md are those that its studies give."""

import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from unitsphere.config import read_json
from unitsphere.studies.transfer import least_squares

RESULTS = Path(__file__).parents[2] / "docs/results"
ARMS = {
    "GPT+, AdamW": "gpt-plus",
    "GPT+, Muon": "gpt-plus-muon",
    "nGPT, Adam": "ngpt",
    "nGPT, Muon": "ngpt-muon",
}
MINUS = "−"


def page() -> str:
    return (RESULTS / "transfer.md").read_text(encoding="utf-8")


def shown(value: float, margin: float) -> str:
    """An exponent with its interval, as the page writes it."""
    numbers = value, value - margin, value + margin
    text = "{:.2f} ({:.2f} to {:.2f})".format(*numbers)
    return text.replace("-0.00 ", "0.00 ").replace("-", MINUS)


def best_rates(arm: str, trained: bool) -> dict[tuple[int, int, int], float]:
    """Width, depth, tokens of each cell of an arm, and its best rate: the interpolant's.

    trained: the lowest loss's instead, in the cells that have single runs beside their study.
    """
    best: dict[tuple[int, int, int], float] = {}
    losses: dict[tuple[int, int, int], dict[float, float]] = {}
    for name in ("64", "size", "width", "both", "three"):  # width's 128×4 by the law's exponents
        arms = read_json(RESULTS / f"transfer/{name}.json")["arms"]
        for cell in arms.get(arm, {"cells": []})["cells"]:
            at = cell["width"], cell["depth"], cell["tokens"]
            losses[at] = {float(rate): loss for rate, loss in cell["rates"].items()}
            assert cell["edge"] is None
            best[at] = cell["best_lr"]
    single = [r for r in read_json(RESULTS / "transfer/between.json")["runs"] if r["arm"] == arm]
    studied = set(best)
    for run in single:
        at = run["width"], run["depth"], 1_000_000
        losses.setdefault(at, {})[run["lr"]] = run["loss"]
        if trained or at not in studied:
            best[at] = min(losses[at], key=losses[at].__getitem__)
    return best


def fitted(arm: str, trained: bool = True) -> list[str]:
    """The exponents of width, depth and tokens."""
    best = best_rates(arm, trained)
    assert len(best) == 6
    X = np.log(np.array(list(best), dtype=float))
    X = np.column_stack([np.ones(len(best)), X - X.mean(axis=0)])
    values, margins = least_squares(X, np.log(list(best.values())))
    return [shown(value, margin) for value, margin in zip(values[1:], margins[1:], strict=True)]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text.replace(MINUS, "-"))]


@pytest.mark.parametrize("name", ARMS)
def test_the_table_has_the_exponents_of_the_six_cells(name):
    table = page().partition("## The exponents that fit")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", table, re.M)
    cells = row.split(" | ")
    assert cells[::2] == fitted(ARMS[name])
    for fit, law in zip(cells[::2], cells[1::2], strict=True):
        _, low, high = numbers(fit)
        top, *bottom = numbers(law)
        assert low < top / (bottom or [1.0])[0] < high


def test_the_widths_by_the_interpolant_are_those_of_the_text():
    for arm in ("ngpt", "ngpt-muon"):
        assert fitted(arm, trained=False)[0] in page()


@pytest.mark.parametrize(("study", "base"), [("gpt-plus", 5.6e-3), ("ngpt", 1.4e-2)])
def test_the_batch_s_exponent_is_that_of_the_lowest_points(study, base):
    """Through the best rate of 2,048 tokens per step (docs/results/league.md), as the page says."""
    arms = read_json(RESULTS / f"transfer/batch-{study}.json")["arms"]
    best = []
    for size in ("8k", "16k"):
        (budget,) = arms[f"{study}-{size}"]["budgets"]
        rates = sorted(budget["tuned"]["rates"], key=lambda rate: rate["loss"])[:3]
        x, y = zip(*((np.log(rate["lr"]), rate["loss"]) for rate in rates), strict=True)
        square, slope, _ = np.polyfit(x, y, 2)
        best.append(-slope / 2 / square)
    X = np.log([[4.0], [8.0]])
    (value,), (margin,) = least_squares(X, np.array(best) - np.log(base))
    assert shown(value, margin) in page()


def test_the_spread_of_the_seeds_is_that_of_the_same_pages():
    """Three seeds of each arm at this size, in the studies of docs/results/horizons.md."""
    studies = [
        read_json(RESULTS / f"horizons/wiki-64/{n}.json") for n in ("early", "late", "late-2")
    ]
    spans: dict[str, list[float]] = {}
    deviations: list[float] = []
    for arm in ("gpt-plus-adamw", "gpt-plus-muon", "ngpt-adam", "ngpt-muon"):
        budgets = [b for study in studies for b in study["arms"][arm]["budgets"]]
        for tokens in (394_000, 1_970_000, 7_880_000):
            same = [b["seeds"] for b in budgets if b["budget"] == tokens]
            losses = [seed["loss"] for seeds in same for seed in seeds]
            assert len(losses) == 3
            spans.setdefault(arm, []).append(max(losses) - min(losses))
            if tokens == 1_970_000:
                deviations.append(statistics.stdev(losses))
    adamw = spans.pop("gpt-plus-adamw")
    others = [span for own in spans.values() for span in own]
    text = page().partition("\n## ")[0]
    assert f"GPT+ with AdamW span {min(adamw):.2f} to {max(adamw):.2f} nats" in text
    assert f"the other three arms {min(others):.2f} to {max(others):.2f}" in text
    between = f"{min(deviations):.3f} to {max(deviations):.3f} nats after five tokens"
    assert f"a standard deviation of {between}" in page()
