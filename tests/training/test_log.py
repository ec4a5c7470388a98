import json
import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unitsphere.training.log import RunLog, cut, duration, read_metrics


def record(step: int, **values) -> dict:
    return {"step": step, "tokens": step * 8, "time": step * 0.5, "loss": 1.0 / step} | values


def write(out, steps, start=0):
    with RunLog(out, start, 10) as log:
        for step in steps:
            log.record(record(step))


def test_records_come_back(tmp_path, capsys):
    with RunLog(tmp_path, 0, 10) as log:
        log.record(record(1))
        log.record(record(2, val_loss=0.1234, lr=1e-3, tokens_per_second=12345.6))
    assert [r["step"] for r in read_metrics(tmp_path)] == [1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 1/10  loss 1.0000")
    assert "val 0.1234" in lines[1]
    assert "12,346 tokens/s" in lines[1]
    assert lines[1].endswith("ETA 0:04")


def test_a_line_fits_80_columns_and_says_what_matters_most(tmp_path):
    full = {"lr": 1e-3, "tokens_per_second": 123456.7, "val_loss": 2.1, "val_bits_per_byte": 1.5}
    with RunLog(tmp_path, 0, 200_000) as log:
        log.line(record(1))
        plain = log.line(record(100_010, lr=1e-3, tokens_per_second=123456.7))
        validated = log.line(record(100_020, slowest_rank=7, slowest_ratio=1.2, **full))
        last = log.line(record(200_000, **full))
    assert max(map(len, (plain, validated, last))) <= 80
    assert all(part in plain for part in ("loss", "lr 1.00e-03", "123,457 tokens/s", "ETA"))
    assert all(part in validated for part in ("val 2.1000", "slowest rank 7", "ETA"))
    assert "(1.5000 bits/byte)" in last
    assert "ETA" not in last


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    cut_at=st.integers(0, 400),
    tail=st.sampled_from([b"", b"\0" * 50, b"\n", b"\xff\n"]),
    saved=st.integers(0, 5),
)
def test_a_kill_at_any_byte_loses_and_doubles_no_step(cut_at, tail, saved, tmp_path):
    """The checkpoint's records are on the disk; of what came later any part may be."""
    (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
    write(tmp_path, range(1, 6))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    before, after = b"".join(lines[:saved]), b"".join(lines[saved:])
    path.write_bytes(before + after[:cut_at] + tail)
    write(tmp_path, range(saved + 1, 8), start=saved)
    assert path.read_bytes().startswith(before)
    assert [json.loads(line)["step"] for line in path.open()] == [1, 2, 3, 4, 5, 6, 7]


def test_samples_after_the_checkpoint_are_cut(tmp_path):
    with RunLog(tmp_path, 0, 10) as log:
        log.sample(1, "früh")
        size = log.samples_size()
        log.sample(2, "late")
    cut(tmp_path, 1, size)
    assert (tmp_path / "samples.txt").read_text(encoding="utf-8") == "--- step 1\nfrüh\n\n"


@pytest.mark.parametrize(("saved", "torn"), [(0, 0), (0, 30), (1, 0), (3, 1), (3, 30), (5, 0)])
def test_tensorboard_shows_no_step_twice_after_a_resume(saved, torn, tmp_path):
    write(tmp_path, range(1, 6))
    (first,) = (tmp_path / "tensorboard").iterdir()
    if torn:
        os.truncate(first, first.stat().st_size - torn)
    write(tmp_path, range(saved + 1, 7), start=saved)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]


def test_a_terminal_gets_one_live_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with RunLog(tmp_path, 0, 10) as log:
        assert log.live is not None
        log.record(record(1))
        log.record(record(2))
        log.say("a plain line")
    assert "a plain line" in capsys.readouterr().err


def test_durations():
    assert [duration(s) for s in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]


def test_what_is_no_number_is_left_out_of_a_record(tmp_path):
    with RunLog(tmp_path, 0, 10) as log:
        log.record(record(1, loss=math.nan, val_loss=math.inf, lr=0.1))
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "tokens": 8, "time": 0.5, "lr": 0.1}\n'
    )
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": NaN, "lr": 0.1, "by": {"a": Infinity, "b": [1.5, NaN, [NaN]]}}\n'
    )
    cut(tmp_path, 1, 0)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "lr": 0.1, "by": {"b": [1.5, null, [null]]}}\n'
    )


def test_a_line_whose_figures_are_no_numbers_is_not_a_record(tmp_path):
    lines = ['{"step": 1, "loss": "low"}', '{"step": "2"}', "[]", '{"step": 3, "note": "x"}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_metrics(tmp_path) == [{"step": 3, "note": "x"}]
