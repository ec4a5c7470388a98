"""Tables, page and picture of a comparison."""

import copy
import io

import pytest
from rich.console import Console
from studies.documents import played

from unitsphere.report.budgets import BudgetCurve, budget_curves, curves_of
from unitsphere.report.comparison import comparison_page, comparison_tables, notes, ratio


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("comparison")
    return played(folder, {"gpt-plus": 1.0, "ngpt-with-a-name": 1.5, "slow": 0.7})


def printed(found) -> str:
    console = Console(file=io.StringIO(), width=80)
    for table in comparison_tables(found):
        console.print(table)
    return console.file.getvalue()


def test_the_tables_fit_80_columns_and_hold_every_figure(found):
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80
    for arm, figures in found["arms"].items():
        assert arm in text
        for budget in figures["budgets"]:
            assert f"{budget['loss']:.4f}" in text
            assert f"{budget['bits_per_byte']:.4f}" in text
    assert "not reached" in text
    assert all(part in text for part in ratio(found["speedups"][0]["tokens"]).split())


def test_large_budgets_fit_too(found):
    large = copy.deepcopy(found)
    for arm in large["arms"].values():
        for budget in arm["budgets"]:
            budget["tokens"] *= 10**7
    text = printed(large)
    assert max(map(len, text.splitlines())) <= 80
    assert f"{large['arms']['gpt-plus']['budgets'][-1]['loss']:.4f}" in text


def test_ratios_say_what_is_missing():
    assert ratio({"median": 1.5, "low": 1.4, "high": 1.62}) == "1.50 (1.40–1.62)"
    assert ratio({"median": 1.5, "low": None, "high": 2.0, "reason": "low: …"}) == "1.50 (≤ 2.00)"
    assert ratio({"median": 1.5, "low": 1.4, "high": None, "reason": "high: …"}) == "1.50 (≥ 1.40)"
    assert ratio({"median": 1.5, "low": None, "high": None}) == "1.50 (no interval)"
    nothing = {"median": None, "low": None, "high": None}
    assert ratio(nothing | {"reason": "not reached within the budgets"}) == "not reached"
    assert ratio(nothing | {"reason": "runs were timed on different hardware"}) == "–"


def test_notes_have_targets_reasons_statements_and_flags(found):
    flagged = found | {"flags": [{"name": "one-seed", "text": "seed 0 alone"}]}
    said = notes(flagged)
    assert "slow, tokens, steps, flops, time: not reached within the budgets" in said
    assert any(line.startswith("slow: gpt-plus comes to its last loss × 1.4") for line in said)
    at_once = copy.deepcopy(flagged)
    for row in at_once["speedups"]:
        row["behind"] = {"median": None, "low": None, "high": None}
    assert "slow: gpt-plus comes to its last loss before the smallest budget" in notes(at_once)
    assert found["differences"][-1]["statement"] in said
    assert said[-1] == "[one-seed] seed 0 alone"


def test_the_page_has_command_tables_picture_and_grids(found):
    page = comparison_page(found, "loss.png")
    assert f"Command: `{found['provenance']['command']}`" in page
    assert "![loss against tokens](loss.png)" in page
    assert "- gpt-plus at 384: 0.01: 3.0000, 0.02: 2.0000, 0.04: –" in page
    assert "| slow | not reached | not reached | not reached | not reached |" in page


def test_the_picture_shows_what_finished(found, tmp_path):
    curves = curves_of(found["arms"])
    assert [curve.name for curve in curves] == list(found["arms"])
    assert curves[0].means == [b["loss"] for b in found["arms"]["gpt-plus"]["budgets"]]
    path = budget_curves(curves, "three arms", tmp_path / "deep" / "loss.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
    lost = copy.deepcopy(found["arms"])
    for seed in lost["slow"]["budgets"][0]["seeds"]:
        seed["loss"] = None
    assert len(curves_of(lost)[2].tokens) == 2
    for budget in lost["slow"]["budgets"]:
        for seed in budget["seeds"]:
            seed["loss"] = None
    assert [curve.name for curve in curves_of(lost)] == list(found["arms"])[:2]


@pytest.mark.parametrize("curves", [[], [BudgetCurve("one", [100], [[3.0]])]])
def test_little_is_enough_for_a_picture(tmp_path, curves):
    assert budget_curves(curves, "little", tmp_path / "loss.png").stat().st_size > 1000
