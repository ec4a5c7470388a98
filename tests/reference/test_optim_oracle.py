"""Closed forms for the optimizer oracle, and torch's own optimizers."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import angpt, ngpt, optim


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_the_first_step_moves_by_the_rate_in_the_direction_of_the_sign() -> None:
    w, g = randn(3, 4), randn(3, 4, seed=1)
    adam = optim.Adam(lr=0.01, eps=0.0)
    after, state = optim.step({"w": w}, {"w": g}, optim.State(), adam)
    close(after["w"], w - 0.01 * torch.sign(g))
    close(state.m["w"], 0.1 * g)
    close(state.v["w"], 0.05 * g * g)
    assert state.t == 1


def test_a_constant_gradient_keeps_that_step() -> None:
    w, g = {"w": randn(3, 4)}, {"w": randn(3, 4, seed=1)}
    state, start = optim.State(), w["w"]
    for _ in range(5):
        w, state = optim.step(w, g, state, optim.Adam(lr=0.01, eps=0.0))
    close(w["w"], start - 0.05 * torch.sign(g["w"]))


def test_eps_is_outside_the_root_and_after_the_bias_correction() -> None:
    w, g = randn(3, 4), randn(3, 4, seed=1)
    after, _ = optim.step({"w": w}, {"w": g}, optim.State(), optim.Adam(lr=0.01, eps=0.5))
    close(after["w"], w - 0.01 * g / (g.abs() + 0.5))


def test_decoupled_decay_shrinks_before_the_step() -> None:
    w, g = {"w": randn(3, 4), "gain": randn(4)}, {"w": torch.zeros(3, 4).double()}
    g["gain"] = torch.zeros(4).double()
    adam = optim.Adam(lr=0.1, weight_decay=0.5, decoupled=True)
    after, _ = optim.step(w, g, optim.State(), adam, decayed={"w": True})
    close(after["w"], 0.95 * w["w"])
    close(after["gain"], w["gain"])


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_torch_takes_the_same_steps(decoupled: bool, weight_decay: float) -> None:
    adam = optim.Adam(lr=0.03, beta2=0.99, weight_decay=weight_decay, decoupled=decoupled)
    parameter = torch.nn.Parameter(randn(3, 4))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    betas = (adam.beta1, adam.beta2)
    theirs = kind([parameter], lr=adam.lr, betas=betas, eps=adam.eps, weight_decay=weight_decay)
    ours, state = {"w": parameter.detach().clone()}, optim.State()
    for seed in range(4):
        g = randn(3, 4, seed=10 + seed)
        parameter.grad = g.clone()
        theirs.step()
        ours, state = optim.step(ours, {"w": g}, state, adam)
    close(ours["w"], parameter.detach())
    close(state.m["w"], theirs.state[parameter]["exp_avg"])
    close(state.v["w"], theirs.state[parameter]["exp_avg_sq"])


@pytest.mark.parametrize("axis", [0, 1])
def test_projections(axis: int) -> None:
    w = torch.tensor([[3.0, 0.3], [4.0, 0.4]], dtype=torch.float64)
    w = w if axis == 0 else w.T
    sphere, ball = (optim.project(w, kind, axis) for kind in ("sphere", "ball"))
    want_sphere = torch.tensor([[0.6, 0.6], [0.8, 0.8]], dtype=torch.float64)
    want_ball = torch.tensor([[0.6, 0.3], [0.8, 0.4]], dtype=torch.float64)
    close(sphere, want_sphere if axis == 0 else want_sphere.T)
    close(ball, want_ball if axis == 0 else want_ball.T)
    close(optim.project(ball, "ball", axis), ball)
    zero = torch.zeros(2, 2).double()
    assert torch.equal(optim.project(zero, "sphere", axis), zero)


def test_clip() -> None:
    g = {"a": torch.tensor([3.0]).double(), "b": torch.tensor([[4.0]]).double()}
    clipped = optim.clip(g, 1.0)
    assert float(clipped["a"]) == pytest.approx(0.6, rel=1e-6)
    assert float(clipped["b"]) == pytest.approx(0.8, rel=1e-6)
    assert torch.equal(optim.clip(g, 6.0)["b"], g["b"])


@pytest.mark.parametrize("kind", ["sphere", "ball"])
def test_a_constrained_step_projects_every_declared_axis_and_no_scale(kind: str) -> None:
    d, d_f, V = 8, 12, 11
    if kind == "sphere":
        settings = ngpt.paper(d, 1, 2, value_embeddings=True)
        table, axes = ngpt.shapes(settings, V, d, d_f), optim.NGPT
    else:
        table, axes = angpt.shapes(angpt.Settings(1, 2), V, d, d_f), optim.ANGPT
    tensors = {name: randn(*shape, seed=3) for name, shape in table.items()}
    gradients = {name: randn(*shape, seed=4) for name, shape in table.items()}
    adam = optim.Adam(lr=0.01)
    free, _ = optim.step(tensors, gradients, optim.State(), adam)
    bound, state = optim.step(tensors, gradients, optim.State(), adam, kind, axes)
    constrained = {name for name in table if name.split(".")[-1] in axes}
    assert {name.split(".")[-1] for name in constrained} == set(axes)
    for name in table:
        if name not in constrained:
            assert torch.equal(bound[name], free[name])
            continue
        axis = axes[name.split(".")[-1]]
        assert table[name][axis] == d or (kind == "ball" and name.endswith("W_d"))
        length = bound[name].square().sum(axis).sqrt()
        assert length.max() <= 1 + 1e-12
        assert kind == "ball" or length.min() >= 1 - 1e-12
    again, _ = optim.step(bound, gradients, state, replace(adam, lr=0.0), kind, axes)
    for name in table:
        close(again[name], bound[name])
