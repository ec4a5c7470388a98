"""Checkpoints are written while the run continues; none is lost, none is written over."""

import errno
import os
import threading

import pytest
import torch
from run_folders import figures, weights

from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.checkpoint import saver as saving
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint import tensors
from unitsphere.training.checkpoint.saver import Saver
from unitsphere.training.checkpoint.store import State
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.run import train


@pytest.fixture
def gate(monkeypatch):
    """Checkpoints are written only when this event is set."""
    opened, write = threading.Event(), saving.write

    def wait_and_write(*args):
        assert opened.wait(30)
        return write(*args)

    monkeypatch.setattr(saving, "write", wait_and_write)
    return opened


def state(step: int) -> State:
    return State(step, step * 8, 1.5, 0, "data", torch.__version__)


def make():
    model = build("gpt", vocab_size=64, d_model=16, n_layers=1, n_heads=2)
    optimizer = build_optimizer(model, OptimConfig())
    tokens = torch.arange(12).reshape(2, 6)
    model.loss(tokens, tokens).backward()
    optimizer.step()
    return model, optimizer


def test_what_is_written_is_the_state_when_it_was_saved(gate, tmp_path):
    model, optimizer = make()
    then = {k: v.clone() for k, v in tensors.named_tensors(model, optimizer).items()}
    with Saver(tmp_path, 2, None) as saver:
        saver.save(state(1), model, optimizer)
        optimizer.step()  # while the thread waits at the gate
        assert not checkpoint.folders(tmp_path)
        gate.set()
    found = tensors.empty_tensors(tmp_path / "step-00000001", "")
    tensors.read_tensors(tmp_path / "step-00000001", found)
    assert found.keys() == then.keys()
    for name, tensor in then.items():
        assert torch.equal(found[name], tensor), name
    now = tensors.named_tensors(model, optimizer)
    assert not torch.equal(now["model.E_out.weight"], then["model.E_out.weight"])


def test_one_at_a_time_and_leaving_waits_for_the_last(tmp_path):
    model, optimizer = make()
    with Saver(tmp_path, 2, keep_every=2) as saver:
        for step in range(1, 6):
            saver.save(state(step), model, optimizer)
            assert {*range(1, step)} >= {*checkpoint.folders(tmp_path)} - {step}
    assert [*checkpoint.folders(tmp_path)] == [2, 4, 5]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-00000005", [])
    assert 0 < saver.longest < 30


def refuse(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failure_of_the_thread_is_raised_at_the_next_look(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "write_named", refuse)
    saver = Saver(tmp_path, 2, None)
    saver.save(state(1), *make())
    assert saver.writing is not None
    saver.writing.join(timeout=30)
    with pytest.raises(UserError, match="step-00000001: No space left"):
        saver.check()


def test_a_collective_that_fails_in_the_thread_is_raised_as_it_is(tmp_path, monkeypatch):
    """The run's `watched` then names the rank that is gone."""

    def gone(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")

    monkeypatch.setattr(saving, "write", gone)
    saver = Saver(tmp_path, 2, None)
    saver.save(state(1), *make())
    with pytest.raises(RuntimeError, match="closed by peer"):
        saver.wait()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failure_stops_the_run_and_nothing_is_lost(asynchronous, tiny, tmp_path, monkeypatch):
    config = tiny(steps=6, save_every=2, async_save=asynchronous)
    write = saving.write_named

    def refuse_step_4(folder, *named):
        return refuse() if folder.name.endswith("4") else write(folder, *named)

    monkeypatch.setattr(saving, "write_named", refuse_step_4)
    with pytest.raises(UserError, match=r"cannot save checkpoint .*step-00000004: No space left"):
        train(config, tmp_path / "run")
    assert [*checkpoint.folders(tmp_path / "run/checkpoints")] == [2]
    monkeypatch.undo()
    train(config, tmp_path / "run")
    train(config, tmp_path / "whole")
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")


def test_a_failure_of_the_last_one_is_not_lost(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "write_named", refuse)
    with pytest.raises(UserError, match="step-00000008: No space left"):
        train(tiny(save_every=0), tmp_path / "run")


def test_a_run_that_fails_says_so_and_also_that_saving_failed(
    tiny, tmp_path, monkeypatch, capsys, gate
):
    monkeypatch.setattr(saving, "write_named", refuse)

    def die(*_):
        gate.set()
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        train(tiny(save_every=3, sample_every=5), tmp_path / "run", sampler=die)
    assert "and cannot save checkpoint" in capsys.readouterr().err


def test_in_the_background_or_not_the_checkpoints_are_the_same(tiny, tmp_path):
    for name, asynchronous in (("a", True), ("b", False)):
        train(tiny("ngpt", async_save=asynchronous, keep_every=4), tmp_path / name)
    folders = [[*checkpoint.folders(tmp_path / name / "checkpoints")] for name in "ab"]
    assert folders == [[4, 6, 8]] * 2
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(b[name], tensor), name
