"""A weight is W [out, in] wherever it is: as a parameter, in a state_dict and in a checkpoint."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim import Adam

from unitsphere.models.constraint import constraints
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.ops.project import length
from unitsphere.training.checkpoint.tensors import (
    load_model,
    load_optimizer,
    named_tensors,
    write_named,
)
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.muon import Muon

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
TOKENS = torch.arange(24).reshape(2, 12)


def ngpt():
    return build("ngpt", **SMALL)


SQUARE = {"vocab_size": 16, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16}


@pytest.mark.parametrize("sizes", [SMALL, SQUARE], ids=["oblong", "square"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_state_dict_has_the_parameters_as_they_are(name, sizes):
    model = build(name, **sizes)
    state = model.state_dict()
    tokens = TOKENS % sizes["vocab_size"]
    for key, parameter in model.named_parameters():
        assert torch.equal(state[key], parameter), key
        assert parameter.is_contiguous(), key
    assert torch.equal(torch.func.functional_call(model, state, (tokens,)), model(tokens))
    halves = {key: tensor / 2 for key, tensor in state.items()}
    with torch.no_grad():
        expected = torch.func.functional_call(model, halves, (tokens,))
        model.load_state_dict(halves)
        assert torch.equal(model(tokens), expected)


def test_columns_of_w_o_are_bounded():
    bounds = {c.parameter: c.dim for c in constraints(ngpt())}
    assert ngpt().blocks[0].mlp.W_oMLP.weight.shape == (16, 24)  # [out, in]
    assert {name for name, dim in bounds.items() if dim == 0} == {
        f"blocks.{i}.{name}.weight" for i in range(2) for name in ("attention.W_o", "mlp.W_oMLP")
    }


def test_a_saved_state_dict_opens_elsewhere(tmp_path):
    model, other = ngpt(), build("ngpt", seed=1, **SMALL)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
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


def trained(seed=0, **optim):
    model = build("ngpt", seed=seed, **SMALL)
    optimizer = build_optimizer(model, OptimConfig(lr=0.02, **optim))
    constrain(model, optimizer)
    for _ in range(2):
        model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_a_checkpoint_has_every_tensor_as_out_by_in(name, tmp_path):
    """Every release has written W and its moments so: a file made by hand opens."""
    model, optimizer = trained(name=name)
    write_named(tmp_path / "written", named_tensors(model, optimizer))
    files = [load_file(path) for path in sorted((tmp_path / "written").glob("*.safetensors"))]
    written = {name: tensor for file in files for name, tensor in file.items()}
    by_hand = {f"model.{name}": p.detach().clone() for name, p in model.named_parameters()}
    for key, p in model.named_parameters():
        by_hand |= {f"optim.{key}.{e}": v.clone() for e, v in optimizer.state[p].items()}
    moment = "momentum_buffer" if name == "muon" else "exp_avg"
    assert by_hand[f"optim.blocks.1.mlp.W_oMLP.weight.{moment}"].shape == (16, 24)
    torch.testing.assert_close(written, by_hand, rtol=0, atol=0)
    (tmp_path / "old").mkdir()
    save_file(by_hand, tmp_path / "old" / "model-00001-of-00001.safetensors")
    other, fresh = trained(seed=3, name=name)
    load_model(tmp_path / "old", other)
    load_optimizer(tmp_path / "old", other, fresh)
    for key, p in other.named_parameters():
        twin = model.get_parameter(key)
        assert torch.equal(p, twin)
        for entry, value in optimizer.state[twin].items():
            assert torch.equal(fresh.state[p][entry], value), (key, entry)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
def test_muon_moves_an_output_matrix_by_its_out_and_in(adjust_lr):
    config = OptimConfig(
        name="muon", lr=0.02, adjust_lr=adjust_lr, weight_decay=0.1,
        constraint=ConstraintConfig(kind="none"),
    )  # fmt: skip
    model = ngpt()
    model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
    weight = model.blocks[0].mlp.W_oMLP.weight
    alone = torch.nn.Parameter(weight.detach().clone())
    alone.grad = weight.grad.clone()
    build_optimizer(model, config).step()
    Muon([alone], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust_lr).step()
    assert torch.equal(weight, alone)


@pytest.mark.parametrize("shape", [(5, 7), (300, 200)])
def test_lengths_of_columns_are_those_of_rows_of_the_transpose(shape):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        found, rows = length(weight, 0), length(weight.t().contiguous(), 1)
        assert found.dtype == rows.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(found, rows.t(), rtol=1e-6, atol=0)


def test_a_plain_loop_keeps_the_columns_of_w_o_on_the_sphere():
    model = ngpt()
    optimizer = Adam(model.parameters(), lr=0.1)
    constrain(model, optimizer)
    model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
    optimizer.step()
    written = model.state_dict()["blocks.0.attention.W_o.weight"]
    assert (written.norm(dim=0) - 1).abs().max() < 1e-6
    assert (written.norm(dim=1) - 1).abs().max() > 1e-3
