"""Matrices on the Frobenius sphere of their start, by projection and by Hyperball's steps."""

import math

import pytest
import torch
from reference import optim as oracle

from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPRConfig
from unitsphere.training.optim.projection import Frobenius, Hyperball
from unitsphere.training.optim.state import attach

SMALL = {"vocab_size": 24, "d_model": 16, "n_layers": 1, "n_heads": 2}


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def on_sphere(w, radius):
    """The oracle's projection with the whole matrix as one vector."""
    return radius * oracle.project(w.reshape(1, -1), "sphere", 1).reshape(w.shape)


def test_adam_steps_then_goes_back_to_the_initial_norm():
    w = torch.nn.Parameter(randn(5, 7))
    adam = oracle.Adam(lr=0.1)
    optimizer = torch.optim.Adam([w], lr=0.1, betas=(0.9, 0.95))
    attach(optimizer, Frobenius([w]))
    expected, state, radius = {"w": w.detach().clone()}, oracle.State(), w.detach().norm()
    for seed in range(4):
        w.grad = randn(5, 7, seed=seed + 1)
        optimizer.step()
        expected, state = oracle.step(expected, {"w": w.grad}, state, adam)
        expected["w"] = on_sphere(expected["w"], radius)
        torch.testing.assert_close(w.detach(), expected["w"], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Muon])
def test_hyperball_takes_the_direction_of_any_optimizer_and_its_own_length(kind):
    """W ← R·N(W − lr·R·N(u)), u the optimizer's update (arXiv 2606.16899)."""
    w = torch.nn.Parameter(randn(5, 7))
    free = torch.nn.Parameter(w.detach().clone())
    optimizer, other = kind([w], lr=0.03, weight_decay=0), kind([free], lr=0.03, weight_decay=0)
    attach(optimizer, Hyperball([w]))
    radius = w.detach().norm()
    for seed in range(3):
        before = w.detach().clone()
        free.data.copy_(before)
        w.grad = free.grad = randn(5, 7, seed=seed + 1)
        optimizer.step()
        other.step()
        u = before - free.detach()
        expected = on_sphere(before - 0.03 * radius * u / u.norm(), radius)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lr", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_tangent_step_turns_by_the_arctangent_of_the_rate(lr, size):
    w = torch.nn.Parameter(randn(5, 7))
    before = w.detach().clone()
    tangent = randn(5, 7, seed=1)
    w.grad = size * (tangent - before * (before * tangent).sum() / before.square().sum())
    optimizer = torch.optim.SGD([w], lr=lr)
    attach(optimizer, Hyperball([w]))
    optimizer.step()
    cosine = (w * before).sum() / before.square().sum()
    assert torch.acos(cosine.clamp(max=1)).item() == pytest.approx(math.atan(lr), abs=2e-8)


@pytest.mark.parametrize("hook", [Frobenius, Hyperball])
def test_no_gradient_a_zero_one_and_a_zero_matrix(hook):
    parameters = [torch.nn.Parameter(randn(3, 4, seed=s)) for s in range(3)]
    idle, still, zero = parameters
    zero.data.zero_()
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    attach(optimizer, hook(parameters))
    before = still.detach().clone()
    still.grad, zero.grad = torch.zeros(3, 4).double(), randn(3, 4)
    optimizer.step()
    assert idle not in optimizer.state  # Adam would take a state for a step done
    torch.testing.assert_close(still.detach(), before, rtol=1e-15, atol=0)
    assert torch.isfinite(zero).all()
    idle.grad = randn(3, 4)
    optimizer.step()
    assert "exp_avg" in optimizer.state[idle]


@pytest.mark.parametrize(
    ("kind", "free"), [("frobenius", []), ("hyperball", ["embedding", "head"])]
)
def test_which_parameters_it_acts_on(kind, free):
    model = build("gpt", **SMALL)
    before = {n: p.detach().norm() for n, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    constrain(model, optimizer, config=ConstraintConfig(kind=kind))
    for seed in range(3):
        x = torch.randint(0, 24, (2, 9), generator=torch.Generator().manual_seed(seed))
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, role in roles(model).items():
        change = abs(model.get_parameter(name).detach().norm() / before[name] - 1)
        held = role in ("matrix", "embedding", "head") and role not in free
        assert (change < 1e-6) == held, name


@pytest.mark.parametrize("kind", ["frobenius", "hyperball", "cpr"])
def test_what_is_remembered_would_not_survive_16_bits(kind):
    model = build("gpt", **SMALL).bfloat16()
    config = ConstraintConfig(kind=kind)
    with pytest.raises(UserError, match=r"needs weights of 32 bits.*bf16 instead of bf16-storage"):
        constrain(model, torch.optim.Adam(model.parameters()), config=config, warmup=1)


def test_a_loaded_run_keeps_its_own_radius():
    """Not that of the weights it happened to be built with."""
    config, saved = ConstraintConfig(kind="frobenius"), []
    for seed in (0, 1):
        model = build("gpt", seed=seed, init_std=0.02 * (1 + seed), **SMALL)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        constrain(model, optimizer, config=config)
        if saved:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        x = torch.arange(24)[None]
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        norm = model.E_in.weight.detach().norm().item()
        if saved:
            assert norm == pytest.approx(saved[2], rel=1e-6)
        saved = [model.state_dict(), optimizer.state_dict(), norm]


@pytest.mark.parametrize(
    ("kind", "key"), [("frobenius", "radius"), ("hyperball", "radius"), ("cpr", "lambda")]
)
def test_torch_s_loader_leaves_the_weights_that_were_loaded_before(kind, key):
    """It makes a step of rate 0 for the names of the state, when the radius is another start's."""
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    def made(seed):
        model = build("gpt", **SMALL, seed=seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        cpr = CPRConfig("Kappa-K", value=0.1)
        constrain(model, optimizer, config=ConstraintConfig(kind=kind, cpr=cpr))
        return model, optimizer

    (trained, optimizer), (model, loaded) = made(0), made(1)
    tokens = torch.arange(12)[None]
    trained.loss(tokens, tokens).backward()
    optimizer.step()
    model.load_state_dict(trained.state_dict())
    set_optimizer_state_dict(model, loaded, get_optimizer_state_dict(trained, optimizer))
    for name, weight in model.named_parameters():
        assert torch.equal(weight, trained.get_parameter(name)), name
        own = optimizer.state[trained.get_parameter(name)].get(key)
        assert loaded.state[weight].get(key) == own
