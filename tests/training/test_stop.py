"""A run stops soon, wherever it is, and resumes as if it had not."""

import dataclasses
import os
import signal
import sys
import threading
import time

import pytest
import torch
from run_folders import figures, weights

from unitsphere.errors import Preempted, UserError
from unitsphere.training import step as training_step
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.evaluate import text as evaluate
from unitsphere.training.run import train
from unitsphere.training.stop import Stop, Watchdog, seconds_of


def signal_in(monkeypatch, module, name, call):
    """Send this process SIGTERM in call number `call` of a function."""
    real, calls = getattr(module, name), 0

    def function(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, function)


def same(broken, whole):
    assert figures(broken) == figures(whole)
    assert (broken / "samples.txt").read_bytes() == (whole / "samples.txt").read_bytes()
    expected, found = weights(whole), weights(broken)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def steps_saved(out):
    return [*checkpoint.folders(out / "checkpoints")]


def sampler(*_):
    return "text"


@pytest.fixture(scope="module")
def dropping(tiny):
    """A masked model with dropout, in four micro-batches a step."""
    config = tiny("normformer", "mlm", micro_batch=1, save_every=0, sample_every=4, eval_every=4)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.2))


@pytest.fixture(scope="module")
def dropped(dropping, tmp_path_factory):
    """The uninterrupted run of that."""
    return train(dropping, tmp_path_factory.mktemp("dropped") / "whole", sampler=sampler).out


@pytest.mark.parametrize(("call", "saved"), [(4 * 5 + 2, 5), (4 * 5 + 4, 6), (4 * 3 + 3, 3)])
def test_in_the_middle_of_an_accumulation(call, saved, dropping, dropped, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    signal_in(monkeypatch, training_step, "autocast", call)  # entered once a micro-batch
    with pytest.raises(Preempted, match=f"saved at step {saved} of 8"):
        train(dropping, broken, sampler=sampler)
    monkeypatch.undo()
    assert steps_saved(broken) == [saved]
    train(dropping, broken, sampler=sampler)
    same(broken, dropped)


def test_in_the_first_step_there_is_nothing_to_save(dropping, dropped, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    signal_in(monkeypatch, training_step, "autocast", 2)
    with pytest.raises(Preempted, match="before the first step"):
        train(dropping, broken, sampler=sampler)
    monkeypatch.undo()
    train(dropping, broken, sampler=sampler)
    same(broken, dropped)


@pytest.mark.parametrize(("objective", "step"), [("clm", 4), ("mlm", 8)])
def test_in_the_middle_of_a_validation(objective, step, tiny, tmp_path, monkeypatch):
    """It is made again when the run resumes, and its record and sample are not lost."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    config = tiny("gpt", objective, micro_batch=1, save_every=3, sample_every=4, eval_every=4)
    batches, autocast = [], evaluate.autocast

    def counted(*args, **kwargs):
        batches.append(args)
        return autocast(*args, **kwargs)

    monkeypatch.setattr(evaluate, "autocast", counted)
    train(config, whole, sampler=sampler)
    monkeypatch.undo()
    each = len(batches) // 2
    assert each > 2
    call = 2 if step == 4 else each + 2
    signal_in(monkeypatch, evaluate, "autocast", call)
    with pytest.raises(Preempted, match=f"saved at step {step} of 8"):
        train(config, broken, sampler=sampler)
    assert max(r["step"] for r in figures(broken)) == step - 1
    monkeypatch.undo()

    signal_in(monkeypatch, evaluate, "autocast", 2)  # and once more, in the same validation
    with pytest.raises(Preempted, match=f"saved at step {step} of 8"):
        train(config, broken, sampler=sampler)
    monkeypatch.undo()
    train(config, broken, sampler=sampler)
    same(broken, whole)
    assert not train(config, broken).trained


def test_a_kill_after_an_unfinished_step_was_finished_doubles_nothing(tiny, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    config = tiny(save_every=0, sample_every=5, eval_every=4)
    train(config, whole, sampler=sampler)
    signal_in(monkeypatch, evaluate, "autocast", 1)
    with pytest.raises(Preempted):
        train(config, broken, sampler=sampler)
    monkeypatch.undo()

    def die(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(config, broken, sampler=die)
    train(config, broken, sampler=sampler)
    same(broken, whole)


def test_the_limit_of_time_saves_and_stops(tiny, tmp_path, monkeypatch, capsys):
    config = tiny("ngpt", save_every=0, micro_batch=1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, whole)
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    limited = dataclasses.replace(config, train=dataclasses.replace(config.train, time_limit="25s"))
    with pytest.raises(Preempted):
        train(limited, broken)
    monkeypatch.undo()
    assert "train.time_limit" in capsys.readouterr().err
    assert 1 <= steps_saved(broken)[0] < 7
    train(config, broken)
    assert figures(broken) == figures(whole)


def test_time_is_kept_free_for_saving():
    stop = Stop(limit=0.5)
    assert not stop.due()
    stop.saving = 0.3
    assert stop.due()


def test_times():
    assert [seconds_of(t) for t in ("90", "90s", "1.5h", "2h30m", "1d")] == [
        90,
        90,
        5400,
        9000,
        86400,
    ]
    for wrong in ("", "soon", "-3", "3w", "0", "3 h", "h", "1e3", "9" * 400):
        with pytest.raises(UserError, match=r"train\.time_limit must be a time"):
            seconds_of(wrong)


def test_a_wrong_limit_is_refused_with_the_config(tiny):
    with pytest.raises(UserError, match="time_limit"):
        tiny(time_limit="soon")


def test_a_closed_terminal_saves_unless_nohup_says_otherwise():
    before = signal.getsignal(signal.SIGHUP)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.due()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.due()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_a_line_waits_for_its_reader_still_asks_to_save(monkeypatch):
    """A pipe that is full, as of `2>&1 | less`: Python refuses to print within a print."""
    reader, writer = os.pipe()
    with open(writer, "w") as slow, Stop() as stop:
        monkeypatch.setattr(sys, "stderr", slow)

        def drain():
            while not stop.requested:
                time.sleep(0.01)
            while os.read(reader, 1 << 16):
                pass

        signaller = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        threads = [threading.Thread(target=drain, daemon=True), signaller]
        for thread in threads:
            thread.start()
        print("x" * (1 << 20), file=slow, flush=True)
        assert stop.requested
    for thread in threads:
        thread.join()
    os.close(reader)


def stuck_here(capfd):
    said, deadline = "", time.monotonic() + 30
    while "in stuck_here" not in said and time.monotonic() < deadline:
        time.sleep(0.01)
        said += capfd.readouterr().err
    return said


def test_a_hang_shows_where_and_a_beat_ends_it(capfd):
    with Watchdog(0.1) as watch:
        said = stuck_here(capfd)
        watch.beat()
    said += capfd.readouterr().err
    assert said.count("no progress for") == 1
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
