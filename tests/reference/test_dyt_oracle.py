"""Closed forms for the DyT oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import basics, dyt

V, D, D_F = 11, 8, 12
PLAIN = dyt.Settings(n_layers=2, n_heads=2)
NO_BIAS = replace(PLAIN, bias=False)
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])


def tensors_for(settings: dyt.Settings, seed: int = 0) -> dict[str, Tensor]:
    around_one = ("alpha", "gamma", "embed_scale")
    return basics.random_tensors(dyt.shapes(settings, V, D, D_F), seed, around_one)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def norm_tensors(alpha: float, gamma: float, beta: float) -> dict[str, Tensor]:
    values = {"n.alpha": torch.tensor(alpha), "n.gamma": torch.full((3,), gamma)}
    values |= {"n.beta": torch.full((3,), beta)}
    return {name: value.double() for name, value in values.items()}


def test_dyt_saturates_at_gamma_is_linear_at_zero_and_odd_around_beta() -> None:
    p = norm_tensors(0.5, 3.0, 0.25)
    far = torch.tensor([1e3, -1e3, 0.0], dtype=torch.float64)
    close(dyt.dyt(far, p, "n", True), torch.tensor([3.25, -2.75, 0.25]).double())
    close(dyt.dyt(far, p, "n", False), torch.tensor([3.0, -3.0, 0.0]).double())
    near = torch.tensor([1e-5, -2e-5, 3e-5], dtype=torch.float64)
    torch.testing.assert_close(dyt.dyt(near, p, "n", False), 1.5 * near, rtol=1e-9, atol=0)
    # (e^2y - 1)/(e^2y + 1) with y = x/2
    x = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    close(dyt.dyt(x, p, "n", False), 3 * (x.exp() - 1) / (x.exp() + 1))


def test_dyt_acts_on_each_element_alone() -> None:
    p = norm_tensors(0.5, 3.0, 0.25)
    x = torch.randn(4, 3, dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    close(dyt.dyt(x[:, order], p, "n", True), dyt.dyt(x, p, "n", True)[:, order])
    changed = torch.cat([x[:, :2], 9 * x[:, 2:]], dim=1)
    close(dyt.dyt(changed, p, "n", True)[:, :2], dyt.dyt(x, p, "n", True)[:, :2])


def test_the_embedding_scale_multiplies_the_input_and_not_a_tied_head() -> None:
    for settings in (PLAIN, replace(PLAIN, tied=True)):
        tensors = tensors_for(settings)
        doubled = tensors | {"embed_scale": 2 * tensors["embed_scale"]}
        one, other = (dyt.hidden_states(t, settings, TOKENS)[0] for t in (tensors, doubled))
        close(other, 2 * one)
        close(one, tensors["embed_scale"] * tensors["E_in"][TOKENS])
    tied = replace(PLAIN, tied=True, n_layers=0)
    tensors = tensors_for(tied)
    large = tensors | {"embed_scale": torch.tensor(1e9).double()}
    large |= {"DyT_final.beta": torch.zeros(D).double()}
    got = dyt.forward(large, tied, TOKENS)
    # tanh saturates: the head sees signs, so the scale of what goes in no longer matters.
    signs = tensors["DyT_final.gamma"] * tensors["DyT_final.alpha"].sign()
    close(got, (tensors["E_in"][TOKENS].sign() * signs) @ tensors["E_in"].T)


@pytest.mark.parametrize("settings", [PLAIN, NO_BIAS])
def test_zero_output_matrices_make_the_block_the_identity(settings: dyt.Settings) -> None:
    tensors = tensors_for(settings)
    for name in tensors:
        if name.endswith(("W_o", "W_oMLP")):
            tensors[name] = torch.zeros_like(tensors[name])
    states = dyt.hidden_states(tensors, settings, TOKENS)
    assert all(torch.equal(state, states[0]) for state in states)


def test_zero_beta_equals_no_beta_and_beta_counts_in_every_dyt() -> None:
    tensors = tensors_for(PLAIN)
    betas = [name for name in tensors if name.endswith("beta")]
    assert len(betas) == 5
    assert not any(name.endswith("beta") for name in dyt.shapes(NO_BIAS, V, D, D_F))
    zeros = {name: torch.zeros_like(tensors[name]) for name in betas}
    without = dyt.forward(tensors, NO_BIAS, TOKENS)
    close(dyt.forward(tensors | zeros, PLAIN, TOKENS), without)
    for name in betas:
        one = dyt.forward(tensors | zeros | {name: tensors[name]}, PLAIN, TOKENS)
        assert not torch.allclose(one, without), name


def test_gamma_folds_into_the_matrices_that_follow() -> None:
    tensors = tensors_for(NO_BIAS)
    folded = dict(tensors)
    follow = {"DyT_A": ("W_q", "W_k", "W_v"), "DyT_M": ("W_u", "W_nu")}
    for i in range(2):
        for norm, matrices in follow.items():
            gamma = tensors[f"layers.{i}.{norm}.gamma"]
            folded[f"layers.{i}.{norm}.gamma"] = torch.ones(D).double()
            for name in matrices:
                folded[f"layers.{i}.{name}"] = tensors[f"layers.{i}.{name}"] * gamma
    folded["E_out"] = tensors["E_out"] * tensors["DyT_final.gamma"]
    folded["DyT_final.gamma"] = torch.ones(D).double()
    close(dyt.forward(folded, NO_BIAS, TOKENS), dyt.forward(tensors, NO_BIAS, TOKENS))


def test_causality_padding_and_document_mask() -> None:
    tensors = tensors_for(PLAIN)
    whole = dyt.forward(tensors, PLAIN, TOKENS)
    close(dyt.forward(tensors, PLAIN, TOKENS[:, :3]), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = dyt.forward(tensors, PLAIN, padded, left_padding=torch.tensor([2, 2]))
    close(got[:, 2:], whole)
    document = torch.tensor([0, 0, 1, 1, 1])
    got = dyt.forward(tensors, PLAIN, TOKENS, mask=document[:, None] == document[None, :])
    close(got[:, 2:], dyt.forward(tensors, PLAIN, TOKENS[:, 2:]))
    both = dyt.forward(tensors, replace(PLAIN, causal=False), TOKENS)
    assert not torch.allclose(both[:, 0], whole[:, 0])


def test_gradients_reach_every_tensor_and_a_zero_head_costs_log_v() -> None:
    for settings in (PLAIN, NO_BIAS, replace(PLAIN, tied=True, rotary_fraction=0.5)):
        tensors = tensors_for(settings)
        loss = dyt.loss(tensors, settings, TOKENS, TARGETS)
        gradients = torch.autograd.grad(loss, list(tensors.values()))
        assert all(g.abs().sum() > 0 for g in gradients)
    tensors = tensors_for(PLAIN) | {"E_out": torch.zeros(V, D, dtype=torch.float64)}
    got = dyt.loss(tensors, PLAIN, TOKENS, TARGETS)
    close(got, torch.tensor(math.log(V), dtype=torch.float64))


def test_parameter_count() -> None:
    d, L = 1024, 24
    shapes = dyt.shapes(dyt.Settings(L, 16), 32000, d, 4 * d)
    count = sum(math.prod(shape) for shape in shapes.values())
    matrices = 16 * d * d * L + 2 * 32000 * d
    assert count - matrices == 1 + (2 * L + 1) * (2 * d + 1)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_positions_enter_through_their_differences_alone(fraction: float) -> None:
    s = replace(PLAIN, rotary_fraction=fraction, causal=False)
    tensors = tensors_for(s)
    here = dyt.forward(tensors, s, TOKENS)
    close(dyt.forward(tensors, s, TOKENS, positions=torch.arange(5).expand(2, 5) + 7), here)
    order = torch.tensor([4, 2, 0, 1, 3])
    shuffled = dyt.forward(tensors, s, TOKENS[:, order])
    assert torch.allclose(shuffled, here[:, order], rtol=1e-11) == (fraction == 0.0)
