"""Closed forms for the GPT and GPT+ oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import basics, gpt

V, D, D_F = 11, 8, 12
GPT = gpt.Settings(n_layers=2, n_heads=2)
PLUS = replace(GPT, qk_norm=True, rotary_fraction=0.5)
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, 4, 8]])


def tensors_for(settings: gpt.Settings, seed: int = 0) -> dict[str, Tensor]:
    shapes = gpt.shapes(settings, V, D, D_F)
    return basics.random_tensors(shapes, seed, around_one=("gain_A", "gain_M", "gain_final"))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_rms_norm_has_mean_square_one() -> None:
    x = 3 * torch.randn(4, D, dtype=torch.float64)
    y = gpt.rms_norm(x, torch.ones(D, dtype=torch.float64), 0.0)
    close(y.square().sum(-1), torch.full((4,), float(D)).double())
    tiny = torch.full((1, 2), 1e-3, dtype=torch.float64)
    close(gpt.rms_norm(tiny, torch.ones(2).double(), 3e-6), tiny / 2e-3)


@pytest.mark.parametrize("settings", [GPT, PLUS])
def test_zero_output_matrices_make_the_block_the_identity(settings: gpt.Settings) -> None:
    tensors = tensors_for(settings)
    for i in range(settings.n_layers):
        for name in ("W_o", "W_oMLP"):
            tensors[f"layers.{i}.{name}"] = torch.zeros_like(tensors[f"layers.{i}.{name}"])
    for state in gpt.hidden_states(tensors, settings, TOKENS):
        assert torch.equal(state, tensors["E_in"][TOKENS])


@pytest.mark.parametrize("settings", [GPT, PLUS, replace(PLUS, g="layer"), replace(GPT, tied=True)])
def test_the_future_changes_nothing_when_causal(settings: gpt.Settings) -> None:
    tensors = tensors_for(settings)
    whole = gpt.forward(tensors, settings, TOKENS)
    close(gpt.forward(tensors, settings, TOKENS[:, :3]), whole[:, :3])
    one = replace(settings, n_layers=1)
    causal = gpt.forward(tensors, one, TOKENS)
    both = gpt.forward(tensors, replace(one, causal=False), TOKENS)
    assert not torch.allclose(both[:, 0], causal[:, 0])
    close(both[:, -1], causal[:, -1])


def test_a_single_token_attends_to_itself_whatever_q_and_k_are() -> None:
    tensors = tensors_for(GPT)
    x = torch.randn(1, 1, D, dtype=torch.float64)
    p = basics.of_layer(tensors, 0)
    see = torch.ones(1, 1, 1, dtype=torch.bool)
    want = x @ p["W_v"].T @ p["W_o"].T
    close(gpt.attention(x, p, GPT, torch.zeros(1, 1), see), want)


@pytest.mark.parametrize("settings", [GPT, PLUS])
def test_left_padding_gives_the_logits_of_the_bare_text(settings: gpt.Settings) -> None:
    tensors = tensors_for(settings)
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = gpt.forward(tensors, settings, padded, left_padding=torch.tensor([2, 2]))
    close(got[:, 2:], gpt.forward(tensors, settings, TOKENS))


def test_a_document_mask_separates_documents() -> None:
    tensors = tensors_for(GPT)
    document = torch.tensor([0, 0, 1, 1, 1])
    got = gpt.forward(tensors, GPT, TOKENS, mask=document[:, None] == document[None, :])
    close(got[:, :2], gpt.forward(tensors, GPT, TOKENS[:, :2]))
    close(got[:, 2:], gpt.forward(tensors, GPT, TOKENS[:, 2:]))


def test_qk_norm_forgets_the_lengths_of_q_and_k() -> None:
    tensors = tensors_for(PLUS)
    scaled = {n: 7 * t if n.endswith(("W_q", "W_k")) else t for n, t in tensors.items()}
    close(gpt.forward(scaled, PLUS, TOKENS), gpt.forward(tensors, PLUS, TOKENS))
    assert not torch.allclose(gpt.forward(scaled, GPT, TOKENS), gpt.forward(tensors, GPT, TOKENS))


def test_g_zero_averages_and_equal_g_agree_per_head_per_layer_and_fixed() -> None:
    head = tensors_for(PLUS)
    layer = dict(head)
    for i in range(PLUS.n_layers):
        head[f"layers.{i}.g"] = torch.full((2,), 1.7, dtype=torch.float64)
        layer[f"layers.{i}.g"] = torch.tensor(1.7, dtype=torch.float64)
    want = gpt.forward(head, PLUS, TOKENS)
    close(gpt.forward(layer, replace(PLUS, g="layer"), TOKENS), want)
    close(gpt.forward(layer, replace(PLUS, g="fixed", g_value=1.7), TOKENS), want)
    root = gpt.forward(layer, replace(PLUS, g="fixed"), TOKENS)
    close(gpt.forward(layer, replace(PLUS, g="fixed", g_value=math.sqrt(D / 2)), TOKENS), root)


def test_zero_logits_cost_log_v_and_gradients_reach_every_tensor() -> None:
    for settings in (GPT, PLUS):
        tensors = tensors_for(settings)
        loss = gpt.loss(tensors, settings, TOKENS, TARGETS)
        gradients = torch.autograd.grad(loss, list(tensors.values()))
        assert all(g.abs().sum() > 0 for g in gradients)
        tensors["E_out"] = torch.zeros(V, D, dtype=torch.float64)
        got = gpt.loss(tensors, settings, TOKENS, TARGETS)
        close(got, torch.tensor(math.log(V), dtype=torch.float64))


def test_published_parameter_count() -> None:
    settings = gpt.Settings(n_layers=24, n_heads=16)
    shapes = gpt.shapes(settings, 32000, 1024, 4096)
    assert sum(math.prod(shape) for shape in shapes.values()) == 468_239_360


def test_two_tokens_share_attention_by_the_logistic_of_their_scaled_difference() -> None:
    one = gpt.Settings(n_layers=1, n_heads=1, rotary_fraction=0.0)
    eye = torch.eye(4, dtype=torch.float64)
    p = {"W_q": eye, "W_k": eye, "W_v": eye, "W_o": eye}
    x = torch.tensor([[[1.0, 0, 0, 0], [3.0, 0, 0, 0]]], dtype=torch.float64)
    see = torch.ones(1, 2, 2, dtype=torch.bool)
    share = 1 / (1 + math.exp(-(9 - 3) / 2))  # sqrt(d_k) = 2
    got = gpt.attention(x, p, one, torch.zeros(1, 2), see)[0, 1, 0]
    assert float(got) == pytest.approx(share * 3 + (1 - share) * 1, rel=1e-12)


def test_the_gate_is_w_nu() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    p = {"W_u": 2 * eye, "W_nu": eye, "W_oMLP": eye}
    got = gpt.mlp(x, p, gpt.Settings(n_layers=1, n_heads=1))
    close(got, 2 * x * x / (1 + torch.exp(-x)))
