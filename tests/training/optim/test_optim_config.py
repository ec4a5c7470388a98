from dataclasses import replace

import pytest
import torch

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.recipes import load_recipe

SMALL = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 2}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weight_decay_goes_to_matrices_and_embeddings_alone(name):
    model = build(name, tied=False, **SMALL)
    optimizer = build_optimizer(model, OptimConfig(name="adamw", weight_decay=0.1))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    role = roles(model)
    for key, p in model.named_parameters():
        assert decay.pop(id(p)) == (0.1 if p.ndim == 2 else 0.0), key
        assert (role[key] in ("matrix", "embedding", "head")) == (p.ndim == 2), key
    assert not decay


def test_adam_refuses_weight_decay():
    with pytest.raises(UserError, match=r"is for optim\.name 'adamw' or 'muon'"):
        build_optimizer(build("ngpt", **SMALL), OptimConfig(weight_decay=0.1))


def test_small_steps_are_kept_in_fp32_and_lost_in_bf16_storage():
    """Steps of 1e-4 on weights near 1/√d: what bf16 weights and Adam state lose."""
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = build("gpt", init_std=0.1, **SMALL).to(dtype)
        optimizer = build_optimizer(model, OptimConfig(lr=1e-4))
        before = model.E_in.weight.detach().clone()
        x = torch.arange(40)[None]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(x, x.roll(-1, 1))
        loss.backward()
        optimizer.step()
        moved[dtype] = (model.E_in.weight != before).float().mean().item()
    assert moved[torch.float32] > 0.99
    assert moved[torch.bfloat16] < 0.9


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", -1.0),
        ("lr", float("nan")),
        ("adam_lr", 0.0),
        ("beta1", -0.1),
        ("beta2", 1.5),
        ("eps", -1e-9),
        ("weight_decay", float("inf")),
        ("clip", -1.0),
        ("momentum", 1.0),
        ("ns_steps", 0),
    ],
)
def test_numbers_out_of_range_are_refused(key, value):
    with pytest.raises(UserError, match=rf"optim\.{key} must be"):
        OptimConfig(name="muon", **{key: value})


def test_another_optimizer_than_the_recipe_s_is_one_line_that_says_how():
    """The keys of Muon are the recipe's: whoever changes the optimizer cannot leave them out."""
    recipe = load_recipe("quickstart/gpt-plus-muon").optim
    with pytest.raises(UserError, match=r"what a recipe sets is undone by (optim\..*)") as error:
        replace(recipe, name="normuon")
    undone = str(error.value).partition("undone by ")[2].split(", ")
    assert undone == ["optim.muon.coefficients quintic", "optim.muon.turns 1"]
    options = [part for line in undone for part in f"--{line}".split()]
    argv = ["params", "quickstart/gpt-plus-muon", "--show", "--optim.name", "normuon", *options]
    assert main(argv) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"momentum": 0.9}, "optim.momentum 0.9 is for optim.name muon or normuon or muonh, not"),
        (
            {"ns_steps": 3},
            "optim.ns_steps 3 is for optim.name muon or normuon or muonh or soap",
        ),
        ({"name": "muon", "nesterov": False}, ""),
        ({"name": "soap-muon", "adjust_lr": "original"}, ""),
        ({"name": "soap", "adjust_lr": "original"}, "optim.adjust_lr original is for"),
    ],
)
def test_a_run_says_which_numbers_its_optimizer_does_not_read(settings, said):
    lines = OptimConfig(**settings).unread()
    assert said in "".join(lines)
    assert len(lines) == (said != "")
