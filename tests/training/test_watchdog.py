"""A run that hangs says where."""

import time

from unitsphere.training.run import train
from unitsphere.training.stop import Watchdog


def stuck_here(watch):
    deadline = time.monotonic() + 30
    while not watch.told and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_hang_shows_where_and_a_beat_ends_it(capfd):
    with Watchdog(0.1) as watch:
        stuck_here(watch)
        time.sleep(0.1)  # the stacks are being written
        watch.beat()
    said = capfd.readouterr().err
    assert said.count("no headway for") == 1
    assert "in stuck_here" in said
    assert "it continued after" in said


def test_a_run_beats_and_without_a_timeout_there_is_no_thread(tiny, tmp_path, capfd, monkeypatch):
    beats = []
    monkeypatch.setattr(Watchdog, "beat", lambda self: beats.append(self))
    monkeypatch.setattr(Watchdog, "_watch", lambda self: beats.append("a thread"))
    train(tiny(micro_batch=1, eval_every=0, hang_timeout=None), tmp_path / "run")
    assert "a thread" not in beats
    assert len(beats) > 8 * 4
    train(tiny(steps=1), tmp_path / "other")
    assert "a thread" in beats
