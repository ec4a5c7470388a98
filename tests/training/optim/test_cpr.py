"""Constrained Parameter Regularization against its equations in plain fp64."""

import dataclasses
import math

import pytest
import torch
from reference import optim as oracle
from run_folders import check_resumed

from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPR, CPRConfig
from unitsphere.training.optim.state import attach

KAPPAS = [
    CPRConfig("Kappa-K", value=42.0),
    CPRConfig("Kappa-kI0", value=0.9),
    CPRConfig("Kappa-WS", warm_steps=5),
    CPRConfig("Kappa-IP", sample_every=2, average=0.5),
]
EVERY = pytest.mark.parametrize("config", KAPPAS, ids=lambda config: config.kappa)


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def gradient(step):
    """Pushes the norm up, ever less."""
    return -randn(6, 8) / step + 0.1 * randn(6, 8, seed=step)


def written_out(config, w, steps):
    """(W, λ, κ) after each step; the curve of Kappa-IP kept whole, its rule read off its end."""
    state, adam = oracle.State(), oracle.Adam(lr=0.05)
    start, lam, kappa, found = (w * w).sum().item(), 0.0, math.inf, []
    kappa = {"Kappa-K": config.value, "Kappa-kI0": config.value * start}.get(config.kappa, kappa)
    average, curve = start, [start]
    for step in range(1, steps + 1):
        after, state = oracle.step({"w": w}, {"w": gradient(step)}, state, adam)
        w = after["w"]
        R = (w * w).sum().item()
        if config.kappa == "Kappa-WS" and step == config.warm_steps:
            kappa = R
        if config.kappa == "Kappa-IP":
            average = config.average * average + (1 - config.average) * R
            if step % config.sample_every == 0:
                curve.append(average)
                bends = len(curve) > 2 and curve[-1] - curve[-2] < curve[-2] - curve[-3]
                kappa = R if bends and math.isinf(kappa) else kappa
        lam = max(0.0, lam + (R - kappa) / w.numel())
        w = w - 2 * lam * w
        found.append((w, lam, kappa))
    return found


@EVERY
@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
def test_every_kappa_follows_the_equations_in_every_form_of_adam(config, form):
    w = torch.nn.Parameter(randn(6, 8))
    other = torch.nn.Parameter(randn(3, 2))
    forms = {"foreach": form == "foreach", "fused": form == "fused"}
    optimizer = torch.optim.Adam([w, other], lr=0.05, betas=(0.9, 0.95), **forms)
    attach(optimizer, CPR([w, other], config))
    regularized = 0
    # Few steps: where λ switches on and off, rounding errors quadruple each time.
    for step, expected in enumerate(written_out(config, w.detach().clone(), 20), 1):
        w.grad, other.grad = gradient(step), randn(3, 2, seed=step)
        optimizer.step()
        state = optimizer.state[w]
        torch.testing.assert_close(w.detach(), expected[0], rtol=1e-10, atol=1e-11)
        assert state["lambda"].item() == pytest.approx(expected[1], rel=1e-8, abs=1e-11)
        assert state["kappa"].item() == pytest.approx(expected[2], rel=1e-10)
        regularized += expected[1] > 0
    assert regularized >= 2  # the bound is found, and it binds


def test_the_norm_stays_near_its_bound():
    w = torch.nn.Parameter(randn(6, 8))
    start = w.detach().square().sum()
    optimizer = torch.optim.Adam([w], lr=0.01)
    attach(optimizer, CPR([w], CPRConfig("Kappa-kI0", value=1.0)))
    direction = -w.detach().clone()
    for _ in range(300):
        w.grad = direction
        optimizer.step()
    assert w.detach().square().sum() / start == pytest.approx(1, abs=0.1)
    assert optimizer.state[w]["lambda"] > 0


def test_an_inflection_needs_a_change_to_compare_with():
    """A curve that slows down from the start bends at the second reading, not at the first."""
    w = torch.nn.Parameter(torch.ones(2, 2).double())
    optimizer = torch.optim.SGD([w], lr=1.0)
    attach(optimizer, CPR([w], CPRConfig("Kappa-IP", sample_every=3, average=0.0)))
    set_at = None
    for step in range(1, 13):
        w.grad = -torch.full((2, 2), 1.0 / step).double()
        optimizer.step()
        if set_at is None and math.isfinite(optimizer.state[w]["kappa"].item()):
            set_at = step
    assert set_at == 6


@pytest.mark.parametrize(
    ("architecture", "config"), [("gpt", KAPPAS[2]), ("normformer", KAPPAS[3])]
)
def test_resuming_with_cpr_is_bitwise_the_uninterrupted_run(architecture, config, tiny, tmp_path):
    """Interrupted at step 5, after the save at 3: before the warm start, between two readings."""
    base = tiny(architecture, sample_every=5, eval_every=0)
    constraint = ConstraintConfig(kind="cpr", cpr=config)
    config = dataclasses.replace(base, optim=OptimConfig(lr=1e-2, constraint=constraint))
    tensors = check_resumed(config, tmp_path)
    assert any(name.endswith("W_q.weight.lambda") for name in tensors)
    assert not any("E_in" in name and name.endswith("lambda") for name in tensors)


def test_the_warm_start_ends_with_the_schedule_s_warm_up():
    model = build("gpt", vocab_size=24, d_model=16, n_layers=1, n_heads=2)
    optimizer = torch.optim.Adam(model.parameters())
    config = ConstraintConfig(kind="cpr")
    with pytest.raises(UserError, match=r"Kappa-WS needs a schedule\.warmup"):
        constrain(model, optimizer, config=config)
    constrain(model, optimizer, config=config, warmup=2)
    W, x = model.blocks[0].attention.W_q.weight, torch.arange(24)[None]
    for step in (1, 2):
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        assert optimizer.state[W]["kappa"].isfinite() == (step == 2)
    assert optimizer.state[W]["kappa"] == W.detach().norm().square()


def test_a_step_that_the_scaler_skips_inside_adam_is_no_step_of_cpr():
    """Fused Adam is called with the scaler's finding and leaves the weights; so does CPR."""
    w = torch.nn.Parameter(randn(4, 4).float())
    optimizer = torch.optim.Adam([w], lr=0.1, fused=True)
    attach(optimizer, CPR([w], CPRConfig("Kappa-K", value=0.0)))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for scale in (1.0, math.inf, 1.0):
        before = w.detach().clone(), dict(optimizer.state[w]) if w in optimizer.state else {}
        scaler.scale((w * randn(4, 4).float()).sum() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isinf(scale):
            assert torch.equal(w, before[0])
    assert optimizer.state[w]["cpr_steps"] == 2


@pytest.mark.parametrize(
    "numbers", [{"value": -1.0}, {"warm_steps": 0}, {"sample_every": 0}, {"average": 1.0}]
)
def test_numbers_that_cannot_be_are_refused_by_name(numbers):
    with pytest.raises(UserError, match=f"cpr.{next(iter(numbers))}"):
        CPRConfig(**numbers)


@pytest.mark.parametrize("kind", ["cpr", "hyperball"])
def test_it_takes_the_place_of_weight_decay(kind):
    with pytest.raises(UserError, match="takes the place of weight decay"):
        OptimConfig(name="adamw", weight_decay=0.1, constraint=ConstraintConfig(kind=kind))
