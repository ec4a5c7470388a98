"""Closed forms for the anGPT oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import angpt, basics
from reference.basics import Scale

V, D, D_F = 11, 8, 12
PAPER = angpt.Settings(n_layers=2, n_heads=2, alpha=Scale(init=0.2, scale=1.0))
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])


def tensors_for(settings: angpt.Settings, seed: int = 0) -> dict[str, Tensor]:
    around_one = ("alpha_A", "alpha_M", "g", "s_z")
    return basics.random_tensors(angpt.shapes(settings, V, D, D_F), seed, around_one)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def gradients(settings: angpt.Settings, tensors: dict[str, Tensor]) -> list[Tensor]:
    loss = angpt.loss(tensors, settings, TOKENS, TARGETS)
    return list(torch.autograd.grad(loss, list(tensors.values())))


def test_nu_alpha_restores_the_length_of_orthogonal_unit_vectors() -> None:
    h, proposal = torch.eye(2, dtype=torch.float64)
    for alpha in (0.0, 0.05, 0.3, 0.5, 1.0):
        a = torch.tensor(alpha, dtype=torch.float64)
        moved = (h + a * (proposal - h)) * angpt.nu_alpha(a)
        close(moved.square().sum(), torch.ones((), dtype=torch.float64))
    half = angpt.nu_alpha(torch.tensor(0.5, dtype=torch.float64))
    close(half, torch.tensor(math.sqrt(2.0), dtype=torch.float64))


def test_alpha_one_goes_to_the_proposal_and_alpha_zero_stays() -> None:
    h, proposal = torch.randn(2, 3, D, dtype=torch.float64)
    for residual in ("nu", "plain"):
        s = replace(PAPER, residual=residual)
        close(angpt.step(h, proposal, torch.ones(D).double(), s), proposal)
        close(angpt.step(h, proposal, torch.zeros(D).double(), s), h)


def test_nu_acf_closed_forms() -> None:
    assert angpt.nu_activation("silu", 0.5) == pytest.approx(3.720349207499167, rel=1e-12)
    for sigma in (0.1, 0.5, 2.0):
        relu, relu2 = (angpt.nu_activation(name, sigma) for name in ("relu", "relu2"))
        assert relu == pytest.approx(math.sqrt(2) / sigma, rel=1e-10)
        assert relu2 == pytest.approx(math.sqrt(2 / 3) / sigma**2, rel=1e-10)
    assert angpt.nu_activation("silu", 1e-6) == pytest.approx(2e6, rel=1e-6)
    assert angpt.nu_activation("gelu", 1e-6) == pytest.approx(2e6, rel=1e-6)
    # For large x SiLU and GELU are ReLU.
    assert angpt.nu_activation("gelu", 1e3) == pytest.approx(math.sqrt(2) / 1e3, rel=1e-5)


def test_z_std_is_a_half_with_the_gain() -> None:
    assert angpt.z_std(PAPER, 64, 256) == pytest.approx(0.5)
    assert angpt.z_std(replace(PAPER, z_gain="1"), 64, 256) == pytest.approx(0.5 / 8)


@pytest.mark.parametrize(
    "changes",
    [{"nu_acf": "exact"}, {"attention_factor": True}],
)
def test_a_factor_before_norm_cancels_in_logits_and_gradients(changes: dict[str, object]) -> None:
    tensors = tensors_for(PAPER)
    changed = replace(PAPER, **changes)  # type: ignore[arg-type]
    close(angpt.forward(tensors, changed, TOKENS), angpt.forward(tensors, PAPER, TOKENS))
    for one, other in zip(gradients(changed, tensors), gradients(PAPER, tensors), strict=True):
        close(one, other)


def test_z_gain_multiplies_w_z() -> None:
    tensors = tensors_for(PAPER)
    by_hand = {n: t * math.sqrt(D) if n.endswith("W_z") else t for n, t in tensors.items()}
    literal = replace(PAPER, z_gain="1")
    close(angpt.forward(by_hand, literal, TOKENS), angpt.forward(tensors, PAPER, TOKENS))
    off = angpt.forward(tensors, literal, TOKENS)
    assert not torch.allclose(off, angpt.forward(tensors, PAPER, TOKENS))


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_homogeneous_activations_forget_the_gain_of_z(activation: str) -> None:
    one = replace(PAPER, activation=activation)
    tensors = tensors_for(one)
    other = replace(one, z_gain="1", nu_acf="exact")
    close(angpt.forward(tensors, one, TOKENS), angpt.forward(tensors, other, TOKENS))


def test_norm_residual_stays_on_the_sphere() -> None:
    s = replace(PAPER, residual="norm")
    for h in angpt.hidden_states(tensors_for(s), s, TOKENS)[1:]:
        close(h.square().sum(-1), torch.ones(2, 5).double())


def test_absolute_alpha() -> None:
    tensors, signed = tensors_for(PAPER), replace(PAPER, absolute_alpha=False)
    flipped = {n: -t if "alpha" in n else t for n, t in tensors.items()}
    close(angpt.forward(flipped, PAPER, TOKENS), angpt.forward(tensors, PAPER, TOKENS))
    plain = angpt.forward(tensors, signed, TOKENS)
    assert not torch.allclose(angpt.forward(flipped, signed, TOKENS), plain)


def test_equal_g_agree_per_head_per_layer_and_fixed() -> None:
    head = tensors_for(PAPER)
    layer = dict(head)
    for i in range(2):
        head[f"layers.{i}.g"] = torch.full((2,), 2.0, dtype=torch.float64)
        layer[f"layers.{i}.g"] = torch.tensor(2.0, dtype=torch.float64)
    want = angpt.forward(head, PAPER, TOKENS)
    close(angpt.forward(layer, replace(PAPER, g="layer"), TOKENS), want)
    close(angpt.forward(layer, replace(PAPER, g="fixed"), TOKENS), want)  # sqrt(d_k) = 2


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_causality_padding_and_document_mask(fraction: float) -> None:
    s = replace(PAPER, rotary_fraction=fraction)
    tensors = tensors_for(s)
    whole = angpt.forward(tensors, s, TOKENS)
    close(angpt.forward(tensors, s, TOKENS[:, :3]), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = angpt.forward(tensors, s, padded, left_padding=torch.tensor([2, 2]))
    close(got[:, 2:], whole)
    document = torch.tensor([0, 0, 1, 1, 1])
    got = angpt.forward(tensors, s, TOKENS, mask=document[:, None] == document[None, :])
    close(got[:, 2:], angpt.forward(tensors, s, TOKENS[:, 2:]))
    both = angpt.forward(tensors, replace(s, causal=False), TOKENS)
    assert not torch.allclose(both[:, 0], whole[:, 0])


def test_without_positions_bidirectional_attention_is_a_set_function() -> None:
    s = replace(PAPER, rotary_fraction=0.0, causal=False)
    tensors = tensors_for(s)
    order = torch.tensor([4, 2, 0, 1, 3])
    whole = angpt.forward(tensors, s, TOKENS)
    close(angpt.forward(tensors, s, TOKENS[:, order]), whole[:, order])


def test_tied_uses_the_input_embedding() -> None:
    tensors = tensors_for(PAPER)
    tensors["W_h"] = tensors["E_in"]
    tied = {n: t for n, t in tensors.items() if n != "W_h"}
    got = angpt.forward(tied, replace(PAPER, tied=True), TOKENS)
    close(got, angpt.forward(tensors, PAPER, TOKENS))


def test_zero_s_z_costs_log_v_and_gradients_reach_every_tensor() -> None:
    zero = replace(PAPER, s_z=Scale("fixed", 0.0))
    got = angpt.loss(tensors_for(zero), zero, TOKENS, TARGETS)
    close(got, torch.tensor(math.log(V), dtype=torch.float64))
    assert all(g.abs().sum() > 0 for g in gradients(PAPER, tensors_for(PAPER)))


@pytest.mark.parametrize(
    ("d", "L", "H", "millions"), [(512, 18, 8, 127.08), (1024, 24, 16, 505.78)]
)
def test_published_parameter_counts(d: int, L: int, H: int, millions: float) -> None:
    shapes = angpt.shapes(angpt.Settings(L, H), 50304, d, 4 * d)
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count / 1e6 == pytest.approx(millions, abs=0.01)


def test_mlp_with_identity_matrices() -> None:
    eye, x = torch.eye(4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    up = torch.cat([eye] * 4)
    p = {"W_u": 3 * up, "W_z": up, "W_d": up.T}
    # d_f = 4d: nu_uz = 1/2, nu_d = 2; sqrt(d) = 2, so z = x; W_d adds four equal copies.
    got = angpt.mlp(x, p, PAPER)
    close(got, 4 * (1.5 * x) * (x / (1 + torch.exp(-x))) * 3.74 * 2)


def test_attention_factor_counts_the_visible_keys() -> None:
    one = replace(PAPER, n_heads=1, attention_factor=True)
    eye, x = torch.eye(4, dtype=torch.float64), torch.ones(1, 3, 4, dtype=torch.float64)
    p = {"W_q": eye, "W_k": eye, "W_v": eye, "W_p": eye, "g": torch.ones(1).double()}
    see = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    got = angpt.attention(x, p, one, torch.arange(3)[None], see)
    close(got[0, :, 0], torch.tensor([1.0, 2.0, 3.0]).double().sqrt())
