"""The median rule, on metrics as runs write them."""

import json
from pathlib import Path

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.core.jobs import Job, State
from unitsphere.studies.trials import EarlyStop, MedianRule


def write(run: Path, figures: list[float]) -> Path:
    run.mkdir(exist_ok=True)
    records = [
        {"step": 10 * (i + 1), "val_loss": 9.0, "val_bits_per_byte": figure}
        for i, figure in enumerate(figures)
    ]
    lines = [json.dumps(record) for record in [{"step": 1, "loss": 3.0}, *records]]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


@pytest.fixture
def rule(tmp_path):
    rivals = [write(tmp_path / f"rival-{i}", [3.0, 2.0 + i / 10, 1.5]) for i in range(4)]
    run = tmp_path / "run"
    return MedianRule(EarlyStop(rule="median", evaluations=4, after=0.25), {run: rivals})


def look(rule: MedianRule, tmp_path, figures: list[float], **more) -> str | None:
    write(tmp_path / "run", figures)
    state = State(Job("run", [], tmp_path / "run", steps=40), "running", **more)
    rule([state])
    return state.stop


def test_a_run_worse_than_the_median_at_that_point_is_stopped(rule, tmp_path):
    # The rivals' second evaluations are 2.0, 2.1, 2.2 and 2.3.
    assert look(rule, tmp_path, [3.5, 2.14]) is None
    assert look(rule, tmp_path, [2.1, 9.0]) is None  # its best counts
    assert look(rule, tmp_path, [3.5, 2.16]) == (
        "stopped at evaluation 2 of 4: at best 2.1600, worse than the median of the others there"
    )


def test_none_is_stopped_early_on_nor_late_nor_without_rivals(rule, tmp_path):
    assert look(rule, tmp_path, [9.0]) is None
    assert look(rule, tmp_path, [9.0, 9.0, 9.0, 9.0]) is None
    assert look(rule, tmp_path, [9.0, 9.0], step=40) is None
    assert look(rule, tmp_path, [9.0, 9.0, 9.0]) is not None
    (tmp_path / "rival-3" / "metrics.jsonl").unlink()
    rule.seen.clear()
    assert look(rule, tmp_path, [9.0, 9.0]) is None


def test_without_a_rule_nothing_is_stopped(rule, tmp_path):
    rule.rule = EarlyStop(evaluations=4, after=0.25)
    assert look(rule, tmp_path, [9.0, 9.0]) is None


def test_what_has_been_read_is_read_again_only_when_it_has_grown(rule, tmp_path):
    assert look(rule, tmp_path, [3.5, 2.0]) is None
    write(tmp_path / "rival-0", [3.0])
    assert rule.evaluations(tmp_path / "rival-0") == [3.0]
    assert rule.evaluations(tmp_path / "nowhere") == []


def test_evaluations_are_spread_over_a_run():
    assert EarlyStop().spacing(1000) == 0
    assert EarlyStop(rule="median").spacing(1000) == 100
    assert EarlyStop(rule="median", evaluations=3).spacing(10) == 4
    with pytest.raises(UserError, match=r"stop\.evaluations must be at least 2"):
        EarlyStop(evaluations=1)
