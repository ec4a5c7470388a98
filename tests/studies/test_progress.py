"""What a user sees while jobs run, on a terminal and elsewhere."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from unitsphere.studies.core import progress
from unitsphere.studies.core.jobs import Job, State
from unitsphere.studies.core.progress import picture


def state(name: str, status="running", **values) -> State:
    return State(Job(name, [], Path("runs") / name, steps=300), status, **values)


def arms() -> list[State]:
    halfway = {"seconds": 60.0, "seconds_left": 60.0}
    return [
        state("gpt-plus", step=150, loss=3.25, tokens_per_second=6400.0, **halfway),
        state("ngpt", step=100, loss=3.5, tokens_per_second=5e3, seconds=60.0, seconds_left=100.0),
        state("angpt", status="waiting"),
    ]


def test_time_left_puts_waiting_jobs_on_the_first_free_worker():
    # Arms that last 120 s and 160 s; the third starts after 60 s and lasts 140 s.
    assert progress.time_left(arms(), 2) == pytest.approx(200.0)
    assert progress.time_left(arms(), 1) is not None
    # One that has just started takes 140 s too, a longer one of which nothing is known twice that.
    assert progress.time_left([*arms()[:2], state("new", seconds=10.0)], 3) == pytest.approx(130.0)
    longer = State(Job("long", [], Path("runs"), steps=600))
    assert progress.time_left([*arms()[:2], longer], 3) == pytest.approx(280.0)
    done = [state("a", status="done", seconds=9.0)]
    assert progress.time_left(done, 2) is None
    assert progress.time_left([state("a")], 2) is None


def test_the_time_left_does_not_grow_while_a_run_is_finishing():
    waiting = [state(f"waiting-{i}", status="waiting") for i in range(3)]
    lasts = [
        progress.time_left(
            [state("a", step=300, seconds=120.0 + late, seconds_left=0.0, overdue=late), *waiting],
            workers=1,
        )
        for late in (0.0, 30.0)
    ]
    assert lasts == [pytest.approx(360.0)] * 2


def test_the_jobs_of_a_later_turn_begin_when_all_others_have_ended():
    later = [state(f"later-{i}", status="waiting") for i in range(3)]
    # 200 s as above, then three of the mean, 140 s, two at a time.
    assert progress.time_left(arms(), 2, later) == pytest.approx(200.0 + 2 * 140.0)
    assert progress.time_left(arms(), 100, later) == pytest.approx(140.0 + 140.0)


def test_the_table_fits_80_columns_and_shows_every_arm():
    console = Console(file=io.StringIO(), width=80)
    finished = state("ngpt", status="done", step=300, loss=2.9, seconds=100.0)
    failed = state("angpt", status="failed", step=20, error="the disk is full")
    console.print(picture([arms()[0], finished, failed, arms()[2]], None))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for word in ("gpt-plus", "150/300", "3.250", "6,400", "1m 00s", "done in 1m 40s", "failed"):
        assert word in text
    assert "waiting" in text


def test_the_table_fits_where_a_loss_diverges():
    console = Console(file=io.StringIO(), width=200)
    console.print(picture([*arms(), state("wild", step=9, loss=1.5e30)], None))
    text = console.file.getvalue()
    assert "1.5e+30" in text
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_is_cut_off_where_all_figures_are_wide():
    name = "gpt-plus-muon+embedding-4.0 491520 #12"
    wide = {"loss": 12.345, "tokens_per_second": 1234567.0, "seconds_left": 4e4}
    states = [
        State(Job(name, [], Path("runs"), steps=99_999), "running", 98_765, **wide),
        State(Job("b", [], Path("runs"), steps=99_999), "done", 99_999, seconds=3599.0, **wide),
    ]
    console = Console(file=io.StringIO(), width=200)
    console.print(picture(states, None))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("12.345", "done in 59m 59s", "98,765/99,999", " #12"):
        assert words in text
    out = io.StringIO()
    show = progress.PlainLines(2, out)
    show.next = 0.0
    show(states)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("#12: step 98,765 of 99,999" in line and "11h 06m left" in line for line in lines)


def test_plain_lines_tell_jobs_of_one_name_apart():
    """Points of one rate that differ in another key have one name, and run side by side."""
    out = io.StringIO()
    show = progress.PlainLines(1, out)
    first, second = state("gpt 0.01 tune"), state("gpt 0.01 tune", status="waiting")
    second.job = dataclasses.replace(second.job, out=Path("runs") / "other")
    for _ in range(3):
        show([first, second])
    assert out.getvalue().count("\n") == 1


def test_plain_lines_tell_starts_ends_and_figures_every_ten_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    states = arms()
    with progress.display(2, out) as show:
        show(states)
        show(states)
        assert out.getvalue().count("gpt-plus: started, log in runs/gpt-plus.log\n") == 1
        assert "angpt" not in out.getvalue()
        assert "loss" not in out.getvalue()
        now[0] = 11.0
        show(states)
        show(states)
        line = "gpt-plus: step 150 of 300, loss 3.250, 6,400 tokens/s, 1m 00s left\n"
        assert out.getvalue().count(line) == 1
        assert "about 3m 20s left\n" in out.getvalue()
        states[0].status, states[0].error = "failed", "the disk is full"
        show(states)
    assert out.getvalue().endswith("gpt-plus: failed: the disk is full\n")


def test_a_long_study_shows_the_jobs_at_work_and_counts_the_others():
    console = Console(file=io.StringIO(), width=80)
    done = [state(f"done-{i}", status="done", seconds=120.0) for i in range(20)]
    waiting = [state(f"later-{i}", status="waiting") for i in range(9)]
    console.print(picture([*done, arms()[0], *waiting], 3720.0))
    text = console.file.getvalue()
    assert "gpt-plus" in text
    assert "about 1h 02m left, 20 done, 1 running, 9 waiting" in text


def test_many_runs_are_summed_up_by_arm_within_80_columns():
    console = Console(file=io.StringIO(), width=80)
    states = []
    for arm in ("gpt-plus", "an arm of a name that is far too long for the table [bold]"):
        for seed in range(20):
            job = Job(f"{arm} 100M #{seed}", [], Path("runs"), steps=200_000, arm=arm)
            kind = "done" if seed < 5 else "running" if seed < 15 else "waiting"
            step = 1_000_000 if seed < 5 else 100_000
            states.append(
                State(job, kind, step, loss=12.345, tokens_per_second=123456.0, seconds_left=4e4)
            )
    states[0].status, states[0].error = "failed", "unitsphere: error: " + "the disk is full " * 9
    console.print(picture(states, 4e4))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    (summary,) = (line.split() for line in lines if line.startswith("gpt-plus  "))
    assert summary[-4:] == ["4/20", "10", "5", "1"]
    assert sum("gpt-plus 100M #" in line for line in lines) == 11
    assert "9 done, 20 running, 10 waiting, 1 failed" in " ".join(lines)
    assert lines[-1].startswith("gpt-plus 100M #0 failed: unitsphere: error: the disk")
