"""Runs with experts: resumed bit for bit, in micro-batches, and what a run refuses."""

import dataclasses
from math import nan as NAN

import pytest
import torch
from run_folders import check_resumed, weights

from unitsphere.errors import UserError
from unitsphere.models.experts import experts_of
from unitsphere.training.corpus import open_corpus
from unitsphere.training.distributed.layout import SINGLE
from unitsphere.training.forecast import forecast, shapes_of
from unitsphere.training.optim import OptimConfig
from unitsphere.training.plan import build_trainer
from unitsphere.training.resolve import resolve
from unitsphere.training.run import train
from unitsphere.training.step import update

EXPERTS = {"n_experts": 4, "top_k": 2, "d_ff": 40, "balance": 0.01}


@pytest.fixture
def config(tiny):
    def make(architecture="ngpt", model=(), **train):
        config = tiny(architecture, **{"sample_every": 5} | train)
        sized = dataclasses.replace(config.model, **EXPERTS | dict(model))
        return dataclasses.replace(config, model=sized)

    return make


@pytest.mark.parametrize(
    ("architecture", "optimizer", "precision"),
    [("ngpt", "adam", "fp32"), ("ngpt", "muonh", "fp32"), ("gpt", "muon", "bf16")],
)
def test_resuming_is_bitwise_the_uninterrupted_run(
    architecture, optimizer, precision, config, tmp_path
):
    run = config(architecture, precision=precision)
    run = dataclasses.replace(run, optim=OptimConfig(name=optimizer, lr=0.01))
    tensors = check_resumed(run, tmp_path)
    biases = [t for name, t in tensors.items() if name.endswith("mlp.router.expert_bias")]
    assert len(biases) == 2
    assert all(bias.dtype == torch.float32 and bias.abs().max() > 0.01 for bias in biases)


def test_the_bias_counts_all_micro_batches_of_a_step(config, tmp_path):
    found = []
    for rows in (None, 1):
        out = tmp_path / str(rows)
        train(config(steps=1, micro_batch=rows, sample_every=0), out)
        found.append(weights(out)["model.blocks.0.mlp.router.expert_bias"])
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.parametrize("how", ["skip", "dropped"])
def test_a_step_that_is_left_out_moves_no_bias(how, config, tmp_path):
    run = resolve(config(), None)
    trainer = build_trainer(run, open_corpus(run).batches)
    trainer.guard.load([], 0, trainer.model.device)
    biases = [experts.router.expert_bias for experts in experts_of(trainer.model)]
    update(trainer, 0)
    before = [bias.clone() for bias in biases]
    assert all(bias.any() for bias in before)
    if how == "dropped":
        trainer.guard.dropped.add(1)
    else:
        trainer.guard.on_spike = "skip"
        trainer = dataclasses.replace(trainer, loss=lambda *a, **k: trainer.model.loss(*a) * NAN)
    update(trainer, 1)
    assert all(torch.equal(bias, old) for bias, old in zip(biases, before, strict=True))


def test_recomputed_blocks_train_alike(config, tmp_path):
    found = []
    for how in ("none", "full"):
        out = tmp_path / how
        train(config(recompute=how, sample_every=0), out)
        found.append(weights(out))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_memory_is_forecast_without_values(config):
    run = config()
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=256))
    found = forecast(*shaped(run))
    dense = dataclasses.replace(run.model, n_experts=0)
    assert found.activations > 0
    assert found.weights > forecast(*shaped(dataclasses.replace(run, model=dense))).weights


def shaped(run):
    return run, shapes_of(run), SINGLE


def test_storing_weights_in_bf16_is_refused(config, tmp_path):
    with pytest.raises(UserError, match=r"take train\.precision bf16 instead of bf16-storage"):
        train(config(precision="bf16-storage"), tmp_path / "run")
