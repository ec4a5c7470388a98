"""The studies with `unitsphere/best-*`: their arms differ in architecture and optimizer alone."""

import dataclasses
from pathlib import Path

import pytest

from unitsphere.models.registry import build_from
from unitsphere.studies.compare import CompareStudy, check_budgets, resolved
from unitsphere.studies.core.fairness import check_fair
from unitsphere.studies.core.plan import arm_config
from unitsphere.studies.core.spec import load_study
from unitsphere.training.recipes import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"
SIZES = {"1m": (128, 4), "3m": (192, 5)}


def configs(name):
    study = load_study(CompareStudy, FOLDER / f"compare-{name}.toml")
    return study, {arm: arm_config(study, arm) for arm in study.arms}


def parameters(config):
    sizes = {"vocab_size": 1024}
    model = type(config.model)(**{**vars(config.model), **sizes})
    return sum(p.numel() for p in build_from(config.architecture, model, "meta").parameters())


@pytest.mark.parametrize("name", SIZES)
def test_the_arms_are_alike_but_for_architecture_and_optimizer(name):
    study, found = configs(name)
    assert set(found) >= {"gpt-plus", "gpt-plus-muon", "ngpt", "angpt", "best"}
    check_fair(found, study.reference, allow=[])
    counts = {arm: parameters(config) for arm, config in found.items()}
    assert max(counts.values()) < 1.02 * min(counts.values())
    width, layers = SIZES[name]
    for config in found.values():
        assert (config.model.d_model, config.model.n_layers) == (width, layers)
        assert config.schedule.kind == "linear"
        assert config.train.batch_tokens == 2048
    assert found["gpt-plus-muon"].optim.name == found["best"].optim.name == "muon"
    assert found["gpt-plus"].optim.name == "adamw"
    assert all(tokens % 2048 == 0 for tokens in study.budgets)


@pytest.mark.parametrize("name", SIZES)
def test_scales_start_by_width_and_depth(name):
    width, layers = SIZES[name]
    model = load_recipe(f"unitsphere/best-{name}").model
    assert model.alpha.init == 1 / layers
    assert model.s_z.init == pytest.approx(width**0.5)
    assert model.d_model // model.n_heads == 64


@pytest.mark.parametrize("size", ["32m", "62m", "125m", "250m", "0.5b", "1b"])
def test_the_papers_sizes_are_those_of_ngpt_with_what_was_found(size):
    best, ngpt = (load_recipe(n) for n in (f"unitsphere/best-{size}", f"angpt2025/ngpt-{size}"))
    small = load_recipe("unitsphere/best-1m")
    for key in ("vocab_size", "d_model", "n_layers", "n_heads"):
        assert getattr(best.model, key) == getattr(ngpt.model, key)
    assert (best.data, best.schedule, best.train) == (ngpt.data, ngpt.schedule, ngpt.train)
    assert best.model.alpha.init == pytest.approx(1 / best.model.n_layers, rel=0.01)
    assert best.model.s_z.init == pytest.approx(best.model.d_model**0.5)
    assert (best.model.s_qk, best.model.residual) == (small.model.s_qk, "gated")
    assert small.optim.head_by_frequency
    assert dataclasses.replace(best.optim, lr=small.optim.lr) == small.optim


@pytest.mark.parametrize("context", ["1k", "4k"])
def test_the_studies_for_a_gpu_are_fair(context):
    study = load_study(CompareStudy, FOLDER / f"compare-32m-{context}.toml")
    found = {arm: resolved(study, arm) for arm in study.arms}
    check_fair(found, study.reference, allow=[])
    check_budgets(study, found)
    assert {config.data.context for config in found.values()} == {int(context[0]) * 1024}
    assert {config.model.d_model for config in found.values()} == {256}
    assert all(tokens % 65536 == 0 for tokens in study.budgets)
    for config in found.values():
        rows = config.train.batch_tokens // config.data.context
        assert rows % config.train.micro_batch == 0
