"""A run that was interrupted and went on is the uninterrupted run, bit for bit."""

import dataclasses
import itertools
import json
import os
import signal
import time

import pytest
from run_folders import KilledError, check_resumed, die, figures

from unitsphere.errors import Preempted
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.optim import OptimConfig
from unitsphere.training.run import train

# Every architecture once; the precision and the objective are the trainer's, not a model's.
CASES = [
    *itertools.product(ARCHITECTURES, ["clm"], ["fp32"]),
    *itertools.product(["ngpt", "normformer"], ["clm"], ["bf16"]),
    ("angpt", "mlm", "bf16"),
]


@pytest.mark.parametrize(("architecture", "objective", "precision"), CASES)
def test_resuming_is_bitwise_the_uninterrupted_run(
    architecture, objective, precision, tiny, tmp_path
):
    config = tiny(architecture, objective, precision=precision, sample_every=5)
    check_resumed(config, tmp_path)


def test_resuming_with_dropout_is_bitwise_the_uninterrupted_run(tiny, tmp_path):
    config = tiny("normformer", "mlm", sample_every=5, micro_batch=3)
    model = dataclasses.replace(config.model, dropout=0.2, attention_dropout=0.2)
    check_resumed(dataclasses.replace(config, model=model), tmp_path)
    assert figures(tmp_path / "whole") != figures(train(config, tmp_path / "without").out)


@pytest.mark.parametrize(
    ("architecture", "optimizer", "precision"),
    [("ngpt", "adam", "fp32"), ("gpt", "muon", "fp32"), ("ngpt", "adam", "bf16")],
)
def test_resuming_a_hybrid_is_bitwise_the_uninterrupted_run(
    architecture, optimizer, precision, tiny, tmp_path
):
    run = tiny(architecture, sample_every=5, precision=precision, micro_batch=2)
    model = dataclasses.replace(
        run.model,
        mixers="gdn mamba2 gla attention",
        n_layers=4,
        recurrence=RecurrenceConfig(d_key=4, d_value=8),
    )
    optim = OptimConfig(name=optimizer, lr=0.01)
    data = dataclasses.replace(run.data, document_mask=True)
    check_resumed(dataclasses.replace(run, model=model, optim=optim, data=data), tmp_path)


def test_time_continues_over_a_resume(tiny, tmp_path):
    config = tiny(sample_every=5)
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", sampler=die)
    train(config, tmp_path / "run")
    times = [r["time"] for r in map(json.loads, (tmp_path / "run/metrics.jsonl").open())]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_finished_run_is_returned_and_not_trained_again(tiny, tmp_path, capsys):
    config = tiny()
    first = train(config, tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    second = train(config, tmp_path / "run")
    assert second == dataclasses.replace(first, trained=False)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert "finished" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_at_the_end_of_the_step_and_the_run_continues(number, tiny, tmp_path):
    config = tiny(sample_every=5, save_every=0)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, whole)
    handlers = signal.getsignal(number)

    def ask(*_):
        os.kill(os.getpid(), number)
        return ""

    with pytest.raises(Preempted, match=r"saved at step 5 of 8.*same command"):
        train(config, broken, sampler=ask)
    assert [p.name for p in (broken / "checkpoints").iterdir()] == ["step-00000005"]
    assert signal.getsignal(number) is handlers
    train(config, broken)
    assert figures(broken) == figures(whole)


def test_a_second_ctrl_c_stops_at_once(tiny, tmp_path):
    def ask_twice(*_):
        while not (tmp_path / "run/checkpoints/step-00000003").exists():
            time.sleep(0.01)  # it is written while the run continues
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        train(tiny(sample_every=5), tmp_path / "run", sampler=ask_twice)
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000003"]
