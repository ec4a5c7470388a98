"""A new optimizer is one file and one line of the registry: it trains, resumes, is forecast, and
its checkpoints are checked, on several processes too."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_recipe import TEXT, tiny_recipe
from toy_optimizer import LINE, Toy
from training.distributed.parallel_cases import Case, losses, resumed, save, trainer_of
from training.distributed.parallel_launch import launch

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.checkpoint.tensors import (
    empty_tensors,
    load_optimizer,
    named_tensors,
    optimizer_tensors,
    write_named,
)
from unitsphere.training.config import run_config_type
from unitsphere.training.distributed.layout import SINGLE, Degrees
from unitsphere.training.forecast import forecast
from unitsphere.training.load import load_run
from unitsphere.training.log import read_metrics
from unitsphere.training.optim import OptimConfig, build_optimizer, optim_config_type
from unitsphere.training.optim.registry import OPTIMIZERS
from unitsphere.training.optim.state import check_state, first_moments, state_spec

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
CASE = Case("ngpt", model={"n_layers": 1}, optim={"name": "toy-factors"})
FSDP2 = Degrees(dp_shard=2)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, place in LINE.items():
        monkeypatch.setitem(OPTIMIZERS, name, place)


def toy() -> OptimConfig:
    return OptimConfig(name="toy-factors", lr=1e-3)


def stepped(dtype=torch.float32, steps=3):
    model = build("ngpt", **SMALL).to(dtype)
    optimizer = build_optimizer(model, toy())
    for step in range(steps):
        one_step(model, optimizer, step)
    return model, optimizer


def one_step(model, optimizer, seed):
    tokens = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(seed))
    model.loss(tokens, tokens.roll(-1, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A recipe and a text in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 100)
    Path("tiny.toml").write_text(
        tiny_recipe(steps=8, save_every=3, lr=1e-2, keep_last=9, log_every=1)
    )
    return tmp_path


TRAIN = ["train", "tiny.toml", "--optim.name", "toy-factors", "--optim.toy_factors.decay", "0.8"]


def tensors(step: Path):
    return {k: v for path in step.glob("*.safetensors") for k, v in load_file(path).items()}


def test_a_run_is_told_its_keys_trains_and_resumes_bit_for_bit(folder):
    assert main([*TRAIN, "--out", "run"]) == 0
    saved = json.loads(Path("run/config.json").read_text())
    assert saved["optim"]["toy_factors"] == {"decay": 0.8, "power": 0.25}
    losses = [record["loss"] for record in read_metrics(Path("run")) if "loss" in record]
    assert losses[-1] < losses[0] - 0.3
    config = load_run("run").config
    assert config.optim.section == type(config.optim.section)(decay=0.8)
    whole = tensors(Path("run/checkpoints/step-00000008"))
    assert {"left", "right", "momentum"} <= {name.rpartition(".")[2] for name in whole}
    for step in (6, 8):
        shutil.rmtree(f"run/checkpoints/step-0000000{step}")
    assert main([*TRAIN, "--out", "run"]) == 0
    again = tensors(Path("run/checkpoints/step-00000008"))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_keys_that_it_does_not_have_are_refused(folder, capsys):
    assert main([*TRAIN[:4], "--optim.toy_factors.decay", "1.5", "--out", "run"]) == 2
    assert "optim.toy_factors.decay must be from 0 to below 1" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"optim\.weight_decay is for optim\.name"):
        OptimConfig(name="toy-factors", weight_decay=0.1)
    assert "toy_factors" in optim_config_type().__dataclass_fields__
    assert "toy_factors" not in OptimConfig.__dataclass_fields__


def test_what_it_declares_is_what_it_keeps_and_what_is_forecast():
    model, optimizer = stepped()
    for parameter in model.parameters():
        kept = optimizer.state[parameter]
        spec = state_spec(optimizer, parameter)
        assert {k: (tuple(t.shape), t.dtype) for k, t in kept.items()} == {
            k: (tuple(slot.shape), slot.dtype) for k, slot in spec.items()
        }
    kept = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    kind = run_config_type("ngpt")
    config = kind(model=kind().model.__class__(**SMALL), optim=toy())
    assert forecast(config, model, SINGLE).optimizer == sum(t.nbytes for t in kept)


def test_probes_find_the_moments_that_it_has():
    model, optimizer = stepped()
    of_adam = {name for name, role in roles(model).items() if role != "matrix"}
    assert first_moments(model, optimizer).keys() == of_adam


def test_its_checkpoint_is_checked(tmp_path):
    model, optimizer = stepped()
    write_named(tmp_path, named_tensors(model, optimizer))
    stored = empty_tensors(tmp_path, "optim.", "meta")
    parameters = dict(model.named_parameters())
    assert check_state(tmp_path, stored, parameters, optimizer).keys() == stored.keys()
    left = next(name for name in stored if name.endswith(".left"))
    for other, refused in (
        ({left: torch.empty(3, 3)}, left),
        ({left: torch.empty_like(stored[left], dtype=torch.float16)}, left),
        ({left + "er": torch.empty(())}, left + "er"),
    ):
        with pytest.raises(UserError, match=f"does not fit the optimizer at {refused}"):
            check_state(tmp_path, stored | other, parameters, optimizer)
    short = {name: tensor for name, tensor in stored.items() if name != left}
    with pytest.raises(UserError, match=f"at {left}: only one of the two has it"):
        check_state(tmp_path, short, parameters, optimizer)
    with pytest.raises(UserError, match="does not fit the optimizer"):
        load_optimizer(tmp_path, model, build_optimizer(model, OptimConfig()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_state_comes_back_in_its_own_precision(dtype, tmp_path):
    model, optimizer = stepped(dtype)
    write_named(tmp_path, named_tensors(model, optimizer))
    fresh = build_optimizer(model, toy())
    load_optimizer(tmp_path, model, fresh)
    before, after = optimizer_tensors(model, optimizer), optimizer_tensors(model, fresh)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert torch.equal(tensor, after[name]), name


def test_a_deep_copy_steps_as_the_original_does():
    model, optimizer = stepped()
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    assert isinstance(its_optimizer.parts[0], Toy)
    for pair in ((model, optimizer), (twin, its_optimizer)):
        one_step(*pair, seed=9)
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), name


def sharded(rank, root):
    """Under FSDP2: as many losses as in one process, and a checkpoint that either can resume."""
    OPTIMIZERS.update(LINE)
    trainer = trainer_of(CASE, FSDP2, rank)
    first = losses(trainer, range(4))
    folder = save(root, trainer, 4)
    rest = losses(trainer, range(4, 7))
    assert torch.equal(rest, losses(resumed(CASE, folder, FSDP2, rank), range(4, 7)))
    if rank == 0:
        torch.save((first, rest), root / "losses.pt")


def test_it_trains_and_resumes_on_shards(tmp_path):
    launch(sharded, 2, tmp_path)
    first, rest = torch.load(tmp_path / "losses.pt")
    alone = trainer_of(CASE)
    assert torch.allclose(first, losses(alone, range(4)), atol=1e-5)
    one = resumed(CASE, tmp_path / "step-00000004")
    assert torch.allclose(rest, losses(one, range(4, 7)), atol=1e-5)
