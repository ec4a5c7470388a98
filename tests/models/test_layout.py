"""Bounded vectors are rows of what is stored, and nobody outside sees how W is stored."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim import Adam

from unitsphere.models.constraint import constraints
from unitsphere.models.parts import Linear, turned
from unitsphere.models.registry import build
from unitsphere.training.constraint import ConstraintConfig, constrain
from unitsphere.training.muon import Muon
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.tensors import load_model, load_optimizer, write_tensors

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
TOKENS = torch.arange(24).reshape(2, 12)


def ngpt():
    return build("ngpt", **SMALL)


def test_every_bounded_vector_is_contiguous():
    model = ngpt()
    for c in constraints(model):
        weight = model.get_parameter(c.parameter)
        assert weight.is_contiguous()
        assert c.dim == weight.dim() - 1
    assert turned(model) == {
        f"blocks.{i}.{name}.weight" for i in range(2) for name in ("attention.W_o", "mlp.W_oMLP")
    }


def test_a_state_dict_has_w_as_it_is_written(tmp_path):
    model, other = ngpt(), build("ngpt", seed=1, **SMALL)
    state = model.state_dict()
    assert state["blocks.0.mlp.W_oMLP.weight"].shape == (16, 24)  # [out, in]
    x = torch.randn(3, 24)
    torch.testing.assert_close(
        model.blocks[0].mlp.W_oMLP(x), x @ state["blocks.0.mlp.W_oMLP.weight"].T
    )
    save_file(state, tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(TOKENS), model(TOKENS))


@pytest.mark.parametrize("assign", [False, True])
def test_loading_leaves_the_given_tensors_alone(assign):
    model, state = ngpt(), build("ngpt", seed=1, **SMALL).state_dict()
    before = copy.deepcopy(state)
    model.load_state_dict(state, assign=assign)
    assert all(torch.equal(state[name], before[name]) for name in before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_missing_matrix_is_named():
    state = ngpt().state_dict()
    del state["blocks.1.attention.W_o.weight"]
    with pytest.raises(RuntimeError, match="W_o"):
        ngpt().load_state_dict(state)


def test_the_start_is_the_same_as_stored_upright():
    """Drawn as W [out, in], so that a seed gives the model that it always gave."""
    linear = ngpt().blocks[0].mlp.W_oMLP
    plain = Linear(24, 16, std=linear.std, bound=None)
    for module in (linear, plain):
        module.reset(torch.Generator().manual_seed(5))
    assert torch.equal(linear.matrix(), plain.matrix())


def trained(seed=0, **optim):
    model = build("ngpt", seed=seed, **SMALL)
    optimizer = build_optimizer(model, OptimConfig(lr=0.02, **optim))
    constrain(model, optimizer)
    for _ in range(2):
        model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_checkpoints_have_moments_in_the_shape_of_w(tmp_path):
    model, optimizer = trained()
    write_tensors(tmp_path, model, optimizer)
    files = [load_file(path) for path in sorted(tmp_path.glob("*.safetensors"))]
    tensors = {name: tensor for file in files for name, tensor in file.items()}
    name = "blocks.1.mlp.W_oMLP.weight"
    assert torch.equal(tensors[f"model.{name}"], model.state_dict()[name])
    moment = optimizer.state[model.get_parameter(name)]["exp_avg"]
    assert tensors[f"optim.{name}.exp_avg"].shape == (16, 24)
    assert torch.equal(tensors[f"optim.{name}.exp_avg"], moment.t())
    other, fresh = trained(seed=3)
    load_model(tmp_path, other)
    load_optimizer(tmp_path, other, fresh)
    for key, p in other.named_parameters():
        twin = model.get_parameter(key)
        assert torch.equal(p, twin)
        for entry, value in optimizer.state[twin].items():
            assert torch.equal(fresh.state[p][entry], value), (key, entry)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
def test_muon_moves_a_turned_matrix_as_an_upright_one(adjust_lr):
    """One step on W_oMLP stored as Wᵀ, and on the same W and gradient stored as W."""
    config = OptimConfig(
        name="muon", lr=0.02, adjust_lr=adjust_lr, weight_decay=0.1,
        constraint=ConstraintConfig(kind="none"),
    )  # fmt: skip
    model = ngpt()
    model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
    weight = model.blocks[0].mlp.W_oMLP.weight
    upright = torch.nn.Parameter(weight.detach().t().contiguous())
    upright.grad = weight.grad.t().contiguous()
    build_optimizer(model, config).step()
    Muon([upright], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust_lr).step()
    torch.testing.assert_close(weight.t(), upright, rtol=0, atol=1e-7)
    assert (upright - model.state_dict()["blocks.0.mlp.W_oMLP.weight"]).abs().max() < 1e-7


def test_a_plain_loop_keeps_the_columns_of_w_o_on_the_sphere():
    model = ngpt()
    optimizer = Adam(model.parameters(), lr=0.1)
    constrain(model, optimizer)
    model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
    optimizer.step()
    written = model.state_dict()["blocks.0.attention.W_o.weight"]
    assert (written.norm(dim=0) - 1).abs().max() < 1e-6
    assert (written.norm(dim=1) - 1).abs().max() > 1e-3
