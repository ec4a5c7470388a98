"""Muon for matrices and Adam for the rest: its equations, and one optimizer to all around it."""

import copy
import dataclasses

import pytest
import torch
from run_folders import check_resumed

import unitsphere
from unitsphere import optim
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, roles
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.optim import OptimConfig, RatesConfig, build_optimizer
from unitsphere.training.optim.base import Combined
from unitsphere.training.optim.muon import Muon, orthogonalise
from unitsphere.training.optim.schedule import factor
from unitsphere.training.plan import Trainer, make_plan
from unitsphere.training.step import set_rates

SMALL = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 2}
MUON = OptimConfig(name="muon", lr=1e-2, adam_lr=3e-3, weight_decay=0.1)


def step(model, optimizer, steps=1, seed=0):
    x = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(seed))
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()


def orthogonalised(u, steps=5, coefficients=(3.4445, -4.7750, 2.0315)):
    """Jordan's Newton–Schulz iteration of the wide orientation, in the precision of `u`."""
    a, b, c = coefficients
    wide = u if u.shape[0] <= u.shape[1] else u.T
    x = wide / wide.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if u.shape[0] <= u.shape[1] else x.T


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_matrices_go_to_muon_and_all_else_to_adam_by_role(name):
    model = build(name, tied=False, **SMALL)
    optimizer = build_optimizer(model, MUON)
    group = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    for key, role in roles(model).items():
        found = group.pop(id(model.get_parameter(key)))
        assert ("momentum" in found) == (role == "matrix"), key
        assert found["lr"] == found["initial_lr"] == (1e-2 if role == "matrix" else 3e-3), key
        decayed = role in ("matrix", "embedding", "head")
        assert found["weight_decay"] == (0.1 if decayed else 0), key
    assert not group


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_too_if_asked_for_unless_it_is_the_embedding(tied):
    model = build("ngpt", tied=tied, **SMALL)
    config = dataclasses.replace(MUON, muon_head=True, rates=RatesConfig(head=0.5))
    optimizer = build_optimizer(model, config)
    group = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    for key, role in roles(model).items():
        found = group[id(model.get_parameter(key))]
        assert ("momentum" in found) == (role in ("matrix", "head")), key
        assert found["lr"] == {"matrix": 1e-2, "head": 0.5e-2}.get(role, 3e-3), key
    step(model, optimizer)
    held = {"matrix", "head"} if not tied else {"matrix"}
    with_momentum = {
        roles(model)[key]
        for key, p in model.named_parameters()
        if "momentum_buffer" in optimizer.state[p]
    }
    assert with_momentum == held


def test_muon_on_the_head_without_muon_is_refused():
    with pytest.raises(UserError, match=r"muon_head is for optim\.name 'muon'"):
        OptimConfig(name="adam", muon_head=True)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust_lr", ["match_rms_adamw", "original"])
@pytest.mark.parametrize(("layer", "ratio"), [("W_oMLP", 1.0), ("W_u", 2.0)])
def test_steps_follow_the_equations(nesterov, adjust_lr, layer, ratio):
    """In fp64, which Newton–Schulz keeps on a CPU."""
    model = build("gpt", **SMALL).double()
    config = dataclasses.replace(MUON, nesterov=nesterov, adjust_lr=adjust_lr)
    optimizer = build_optimizer(model, config)
    W = getattr(model.blocks[0].mlp, layer).weight  # [32, 128] and [128, 32]
    ratio = 0.2 * 128**0.5 if adjust_lr == "match_rms_adamw" else ratio
    momentum = torch.zeros_like(W)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        W.grad = torch.randn(W.shape, generator=generator, dtype=torch.float64)
        before = W.detach().clone()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * W.grad
        u = 0.05 * W.grad + 0.95 * momentum if nesterov else momentum
        moved = ((1 - 1e-2 * 0.1) * before - W) / (1e-2 * ratio)
        torch.testing.assert_close(moved, orthogonalised(u), rtol=0, atol=1e-12)
        values = torch.linalg.svdvals(moved)
        assert values.min() > 0.6
        assert values.max() < 1.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_on_a_cpu_newton_schulz_runs_in_the_weight_s_precision_fp32_at_least(dtype):
    update = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = orthogonalise(update, 5)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    exact = orthogonalised(update.double())
    assert (found - exact).abs().max() < 1e-5
    torch.testing.assert_close(orthogonalise(update.T, 5), found.T, rtol=0, atol=1e-5)


def test_a_step_is_torch_s_but_for_the_precision():
    """torch's Newton–Schulz runs in bf16: 8 bits."""
    start = torch.randn(24, 40, generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    numbers = {"lr": 0.1, "weight_decay": 0.2, "adjust_lr_fn": "match_rms_adamw"}
    for kind, weight in ((Muon, ours), (torch.optim.Muon, theirs)):
        optimizer = kind([weight], **numbers)
        for seed in range(3):
            weight.grad = torch.randn(24, 40, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (ours - start).norm()


def test_an_update_of_nothing_moves_nothing():
    assert orthogonalise(torch.zeros(3, 5), 5).count_nonzero() == 0


def test_the_rest_is_adamw_exactly():
    model = build("ngpt", **SMALL)
    twin = copy.deepcopy(model)
    optimizer = build_optimizer(model, MUON)
    rest = [n for n, role in roles(model).items() if role != "matrix"]
    decay = {n: 0.1 * (model.get_parameter(n).ndim == 2) for n in rest}
    adamw = torch.optim.AdamW(
        [{"params": [twin.get_parameter(n)], "weight_decay": decay[n]} for n in rest],
        lr=3e-3,
        betas=(0.9, 0.95),
    )
    for seed in range(3):
        step(model, optimizer, seed=seed)
        for name in rest:
            twin.get_parameter(name).grad = model.get_parameter(name).grad.clone()
        adamw.step()
    for name in rest:
        torch.testing.assert_close(model.get_parameter(name), twin.get_parameter(name))


def test_without_a_rate_of_its_own_adam_has_the_same():
    optimizer = build_optimizer(build("gpt", **SMALL), OptimConfig(name="muon", lr=5e-3))
    assert {g["lr"] for g in optimizer.param_groups} == {5e-3}


def test_the_schedule_keeps_the_two_rates_apart(tiny):
    model = build("gpt", **SMALL)
    config = dataclasses.replace(tiny(steps=10), optim=MUON)
    trainer = Trainer(
        config, make_plan(config), model, model.loss, build_optimizer(model, MUON), None
    )
    set_rates(trainer.optimizer, factor(config.schedule, 5, 10))
    rates = [g["lr"] for g in trainer.optimizer.param_groups]
    assert rates == pytest.approx([0.5e-2, 1.5e-3, 1.5e-3])
    step(model, trainer.optimizer)
    set_rates(trainer.optimizer, factor(config.schedule, 0, 10))
    before = [p.detach().clone() for p in model.parameters()]
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0
    step(model, trainer.optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
def test_it_continues_the_same_after_a_reload_and_as_a_copy(way):
    model = build("ngpt", **SMALL)
    optimizer = build_optimizer(model, MUON)
    step(model, optimizer, 3)
    if way == "state_dict":
        other = copy.deepcopy(model)
        other_optimizer = build_optimizer(other, dataclasses.replace(MUON, lr=1.0))
        other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        other, other_optimizer = copy.deepcopy((model, optimizer))
    assert isinstance(other_optimizer, Combined)
    before = other.E_in.weight.detach().clone()
    for group in optimizer.param_groups + other_optimizer.param_groups:
        group["lr"] *= 0.5
    step(model, optimizer, 3)
    assert torch.equal(other.E_in.weight, before)
    step(other, other_optimizer, 3)
    for (key, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), key
    assert len(other_optimizer.state) == len(list(other.parameters()))


def test_a_closure_is_evaluated_with_gradients_and_once():
    model = build("gpt", **SMALL)
    optimizer = build_optimizer(model, MUON)
    before = [p.detach().clone() for p in model.parameters()]
    calls = []

    def closure():
        calls.append(1)
        x = torch.arange(40)[None]
        loss = model.loss(x, x.roll(-1, 1))
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert len(calls) == 1
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_constrain_holds_both_halves():
    model = build("ngpt", **SMALL)
    optimizer = build_optimizer(model, MUON)
    unitsphere.constrain(model, optimizer)
    step(model, optimizer, 4)
    for c in constraints(model):
        length = model.get_parameter(c.parameter).norm(dim=c.dim)
        assert (length - 1).abs().max() < 1e-6, c.parameter


@pytest.mark.parametrize("architecture", ["gpt", "ngpt"])
def test_resuming_with_muon_is_bitwise_the_uninterrupted_run(architecture, tiny, tmp_path):
    config = dataclasses.replace(tiny(architecture, sample_every=5), optim=MUON)
    tensors = check_resumed(config, tmp_path)
    assert any(name.endswith("momentum_buffer") for name in tensors)


def test_a_rate_for_adam_without_muon_is_refused():
    with pytest.raises(UserError, match=r"adam_lr is for optim\.name 'muon'"):
        OptimConfig(name="adamw", adam_lr=1e-3)


@pytest.mark.parametrize("name", ["muon", "normuon", "soap-muon"])
def test_a_floor_leaves_a_matrix_without_a_gradient_where_it_is(name):
    """As the MLP's first matrices are in the first step, where branches start at zero."""
    W = torch.nn.Parameter(torch.full((6, 4), 2.0))
    kind = {"muon": optim.Muon, "normuon": optim.NorMuon, "soap-muon": optim.SoapMuon}[name]
    optimizer = kind([W], lr=0.1, weight_decay=0.0, floor=0.35)
    for _ in range(2):
        W.grad = torch.zeros_like(W)
        optimizer.step()
    assert torch.equal(W, torch.full((6, 4), 2.0))
