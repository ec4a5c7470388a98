"""Compiled runs: one graph for all layers, and none anew while the rate changes."""

import dataclasses
import os

import pytest
import torch
from torch._dynamo.utils import counters

from unitsphere.data import Batch
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.build import build_job
from unitsphere.training.compiling import CACHE, compiles, keep_cache
from unitsphere.training.config import run_config_type
from unitsphere.training.loop import train_steps


class Windows:
    """The same random rows at every step."""

    def __init__(self):
        tokens = torch.randint(24, (2, 9), generator=torch.Generator().manual_seed(0))
        self.tokens = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def batch(self, step):
        return self.tokens


class Watcher:
    """Losses, and the number of graphs after every step."""

    def __init__(self):
        self.losses, self.graphs = [], []

    def between(self):
        pass

    def after(self, step, loss, grad_norm, lr):
        self.losses.append(loss.item())
        self.graphs.append(counters["stats"]["unique_graphs"])


def trained(name, steps, compile):
    kind = run_config_type(name)
    numbers = {"vocab_size": 24, "d_model": 16, "n_layers": 3, "n_heads": 2}
    start = kind()
    config = dataclasses.replace(
        start,
        model=dataclasses.replace(start.model, **numbers),
        train=dataclasses.replace(start.train, steps=steps, compile=compile, device="cpu"),
    )
    watcher = Watcher()
    train_steps(build_job(config, Windows()), 0, watcher)
    return watcher


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_a_thousand_steps_need_no_graph_beyond_the_first_and_break_none():
    watched = trained("ngpt", 1000, compile=True)
    assert watched.graphs[0] >= 1
    assert watched.graphs[-1] == watched.graphs[0] == 1  # all three layers share it
    assert not counters["graph_break"]
    plain = trained("ngpt", 3, compile=False)
    assert watched.losses[:1] == pytest.approx(plain.losses[:1], rel=1e-5)
    assert watched.losses[-1] < 0.5 * watched.losses[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_architecture_makes_graphs_by_the_layer(name, monkeypatch):
    def traced(model):
        for block in model.blocks:
            block.compile(fullgraph=True, backend="aot_eager")

    monkeypatch.setattr("unitsphere.training.parallel.parallelize.compile_blocks", traced)
    watched = trained(name, 3, compile=True)
    assert watched.graphs[0] == watched.graphs[-1] <= 2  # LN-scaling's 1/√ℓ is a number by layer


def test_compiling_is_for_gpus_unless_asked_for():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [compiles(None, cpu), compiles(None, gpu)] == [False, True]
    assert [compiles(True, cpu), compiles(False, gpu)] == [True, False]


def test_what_is_compiled_is_kept_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, "/elsewhere")
    keep_cache(tmp_path)
    assert os.environ[CACHE] == "/elsewhere"
    monkeypatch.delenv(CACHE)
    keep_cache(tmp_path)
    assert os.environ[CACHE] == str(tmp_path / "compiled")
