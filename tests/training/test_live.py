"""Probes while a run trains: they are in its log, and change nothing else."""

import dataclasses
from functools import partial

import pytest
import torch
from run_folders import figures, weights

from unitsphere.errors import UserError
from unitsphere.inspection.live import (
    DEFAULT,
    InspectConfig,
    live_probes,
)
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.log import read_metrics
from unitsphere.training.run import train

LIVE = live_probes()


def with_probes(config, every, probes=None):
    return dataclasses.replace(config, inspect=InspectConfig(every, probes))


def without_probes(out):
    return [{k: v for k, v in r.items() if not k.startswith("probe/")} for r in figures(out)]


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """The same run of ngpt with all live probes at every second step, and without."""
    root = tmp_path_factory.mktemp("live")
    train(with_probes(tiny("ngpt"), 2, ",".join(LIVE)), root / "on")
    train(with_probes(tiny("ngpt"), 0), root / "off")
    return root / "on", root / "off"


def test_losses_and_weights_are_bitwise_those_without_probes(pair):
    on, off = pair
    assert without_probes(on) == figures(off)
    ours, theirs = weights(on), weights(off)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_dropout_draws_the_same_numbers(tiny, tmp_path):
    config = tiny("normformer", steps=4)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.2))
    train(with_probes(config, 1, ",".join(LIVE)), tmp_path / "on")
    train(with_probes(config, 0), tmp_path / "off")
    assert without_probes(tmp_path / "on") == figures(tmp_path / "off")


def test_records_have_a_figure_for_each_series_and_layer(pair):
    on, _ = pair
    probed = {r["step"]: {k for k in r if k.startswith("probe/")} for r in read_metrics(on)}
    assert [step for step, keys in probed.items() if keys] == [2, 4, 6, 8]
    assert all(keys == probed[8] for keys in probed.values() if keys)
    silent = {"gain_norms", "lambda_by_depth", "max_violation"}
    assert {key.split("/")[1] for key in probed[8]} == set(LIVE) - silent
    assert {
        "probe/input_norms/h/0",
        "probe/input_norms/h/1",
        "probe/sublayer_angles/mlp/1",
        "probe/logit_lens/loss/in",
        "probe/second_fc_gradients/W_oMLP/0",
        "probe/gradient_norms/W_q/0",
        "probe/moment_variance/W_o/1",
        "probe/angular_updates/W_q/0",
        "probe/angular_updates/E_in/all",
        "probe/eigen_learning_rates/alpha_A/0",
        "probe/learned_scales/s_z/all",
        "probe/group_norms/output embedding/all",
    } <= probed[8]
    last = read_metrics(on)[-1]
    assert last["probe/input_norms/h/0"] == pytest.approx(1, abs=1e-5)
    assert last["probe/group_norms/W_q/1"] == pytest.approx(1, abs=1e-5)
    assert 0 < last["probe/angular_updates/W_q/0"] < 90


def test_gradients_are_read_before_they_are_clipped(tiny, tmp_path):
    norms = {}
    for clip in (1e-3, 0.0):
        config = tiny("gpt", steps=1)
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, clip=clip))
        train(with_probes(config, 1, "gradient_norms"), tmp_path / str(clip))
        norms[clip] = read_metrics(tmp_path / str(clip))[0]["probe/gradient_norms/W_oMLP/1"]
    assert norms[1e-3] == norms[0.0] > 0


def test_a_run_that_died_has_the_same_records(tiny, tmp_path, pair):
    config = with_probes(tiny("ngpt", sample_every=5), 2, ",".join(LIVE))

    def dies(*_):
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(config, tmp_path / "run", sampler=dies)
    assert [r["step"] for r in read_metrics(tmp_path / "run")][-1] == 5
    train(config, tmp_path / "run")  # from step 3 on
    assert figures(tmp_path / "run") == figures(pair[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_probed_by_default(architecture, tiny, tmp_path):
    config = tiny(architecture, steps=2)
    assert config.inspect == InspectConfig()
    train(with_probes(config, 2), tmp_path / "run")
    found = {k.split("/")[1] for k in read_metrics(tmp_path / "run")[-1] if k.startswith("probe/")}
    silent = set(DEFAULT) - found
    assert silent <= {"gain_norms", "eigen_learning_rates"}
    assert len(silent) == 1 + (architecture == "rezero")


def test_the_default_probes_are_live_ones():
    assert set(DEFAULT) <= set(LIVE)


def test_what_cannot_be_probed_live_is_one_line():
    with pytest.raises(UserError, match=r"'matrix_rank' is not a live probe"):
        InspectConfig(10, "input_norms, matrix_rank")
    with pytest.raises(UserError, match=r"inspect\.every must not be negative: -1"):
        InspectConfig(-1)
    assert InspectConfig(10, "input_norms, group_norms").names() == ("input_norms", "group_norms")


def test_compiled_blocks_are_watched_as_they_are_written(tiny, tmp_path, monkeypatch):
    # Traced like any compiled run, but run by PyTorch: what is checked is where hooks get to.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    config = tiny("ngpt", steps=3, compile=True)
    train(with_probes(config, 2), tmp_path / "on")
    train(with_probes(config, 0), tmp_path / "off")
    assert without_probes(tmp_path / "on") == figures(tmp_path / "off")
    probed = next(r for r in read_metrics(tmp_path / "on") if r["step"] == 2)
    assert {"probe/input_norms/h/1", "probe/sublayer_angles/mlp/1"} <= probed.keys()
