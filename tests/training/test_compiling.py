"""Compiled runs: one graph for all layers, and none again while the rate changes."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from unitsphere.data import Batch
from unitsphere.errors import UserError
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.compile_cache import CACHE, SEAL, check_private, kept_cache
from unitsphere.training.config import run_config_type
from unitsphere.training.distributed.parallelize import compile_blocks
from unitsphere.training.plan import build_trainer, compiles
from unitsphere.training.step import train_steps


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


def trained(name, steps, compile, **numbers):
    kind = run_config_type(name)
    numbers |= {"vocab_size": 24, "d_model": 16, "n_layers": 3, "n_heads": 2}
    start = kind()
    config = dataclasses.replace(
        start,
        model=dataclasses.replace(start.model, **numbers),
        train=dataclasses.replace(start.train, steps=steps, compile=compile, device="cpu"),
    )
    watcher = Watcher()
    train_steps(build_trainer(config, Windows()), 0, watcher)
    return watcher


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_hundreds_of_steps_need_no_graph_beyond_the_first_and_break_none():
    watched = trained("ngpt", 300, compile=True)
    assert watched.graphs[-1] == watched.graphs[0] == 2  # all three layers share one; the loss's
    assert not counters["graph_break"]
    plain = trained("ngpt", 3, compile=False)
    assert watched.losses[:1] == pytest.approx(plain.losses[:1], rel=1e-5)
    assert watched.losses[-1] < 0.8 * watched.losses[0]


@pytest.mark.parametrize("name", ["gpt", "ngpt", "angpt"])
def test_what_the_token_before_adds_is_compiled_too(name):
    both = {"token_shift": True, "bigram_rows": 30}
    watched = trained(name, 4, compile=True, **both)
    assert watched.graphs[-1] == watched.graphs[0] == 3  # the blocks', the loss's, and this one's
    assert not counters["graph_break"]
    plain, compiled = (build(name, vocab_size=24, d_model=16, n_heads=2, **both) for _ in range(2))
    compile_blocks(compiled)
    tokens = Windows().tokens
    for model in (plain, compiled):
        model.loss(tokens.inputs, tokens.targets).backward()
    for own, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_architecture_makes_graphs_by_the_layer(name, monkeypatch):
    def traced(model):
        for block in model.blocks:
            block.compile(fullgraph=True, backend="aot_eager")

    monkeypatch.setattr("unitsphere.training.distributed.parallelize.compile_blocks", traced)
    watched = trained(name, 3, compile=True)
    assert watched.graphs[0] == watched.graphs[-1] <= 2  # LN-scaling's 1/√ℓ is a number by layer


def test_compiling_is_for_gpus_unless_asked_for():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [compiles(None, cpu), compiles(None, gpu)] == [False, True]
    assert [compiles(True, cpu), compiles(False, gpu)] == [True, False]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.delenv(CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def opened(run) -> Path:
    """The cache that is kept for a run."""
    with kept_cache(run, first=True):
        return Path(os.environ[CACHE])


def test_what_is_compiled_is_kept_in_the_user_s_own_cache(home, tmp_path, monkeypatch):
    run = tmp_path / "run"
    (run / "compiled").mkdir(parents=True)  # of an earlier version, or of a stranger
    with kept_cache(run, first=True):
        cache = Path(os.environ[CACHE])
        (cache / "ab").mkdir()
        (cache / "ab/graph").write_bytes(b"compiled")
    assert cache.is_relative_to(home / "unitsphere")
    assert cache.stat().st_mode & 0o777 == (home / "unitsphere").stat().st_mode & 0o777 == 0o700
    assert CACHE not in os.environ
    assert opened(run) == cache != opened(tmp_path / "other")
    assert (cache / "ab/graph").read_bytes() == b"compiled"
    monkeypatch.setenv(CACHE, "/elsewhere")
    assert opened(run) == Path("/elsewhere")


@pytest.mark.parametrize("harm", ["changed", "added", "removed", "seal", "emptied"])
def test_a_damaged_cache_is_emptied(harm, home, tmp_path):
    with kept_cache(tmp_path, first=True):
        cache = Path(os.environ[CACHE])
        for name in ("graph", "library.so"):
            (cache / name).write_bytes(b"compiled")
    if harm == "changed":
        (cache / "library.so").write_bytes(b"comp")
    elif harm == "added":
        (cache / "half").write_bytes(b"")
    elif harm == "removed":
        (cache / "graph").unlink()
    elif harm == "seal":
        (cache / SEAL).write_text("[")
    else:
        shutil.rmtree(cache)
    assert opened(tmp_path) == cache
    assert [path.name for path in cache.iterdir()] == [SEAL]


def test_a_cache_of_somebody_else_is_refused(home, tmp_path, monkeypatch):
    opened(tmp_path)
    me = os.getuid()
    with pytest.raises(UserError, match=r"belongs to another user.*XDG_CACHE_HOME"):
        check_private(home, me + 1)
    (tmp_path / "else").mkdir()
    shutil.rmtree(home / "unitsphere/compiled")
    (home / "unitsphere/compiled").symlink_to(tmp_path / "else")
    with pytest.raises(UserError, match="is a link"):
        opened(tmp_path)
    assert [*(tmp_path / "else").iterdir()] == []


def test_without_a_cache_folder_what_is_compiled_lasts_as_long_as_the_process(
    home, tmp_path, capsys
):
    home.write_text("no folder")
    cache = opened(tmp_path)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert "is not cached" in capsys.readouterr().err
    shutil.rmtree(cache)
