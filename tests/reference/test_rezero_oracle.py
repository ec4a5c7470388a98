"""Closed forms for the ReZero oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import basics, rezero

V, D, D_F = 11, 8, 12
PLAIN = rezero.Settings(n_layers=2, n_heads=2)
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])


def tensors_for(settings: rezero.Settings, seed: int = 0) -> dict[str, Tensor]:
    return basics.random_tensors(rezero.shapes(settings, V, D, D_F), seed, around_one=("a",))


def with_a(tensors: dict[str, Tensor], *values: float) -> dict[str, Tensor]:
    stored = {f"layers.{i}.a": torch.tensor(a, dtype=torch.float64) for i, a in enumerate(values)}
    return tensors | stored


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_a_zero_makes_a_bag_of_one_token_whose_logits_are_a_matrix_product() -> None:
    tensors = with_a(tensors_for(PLAIN), 0.0, 0.0)
    want = (tensors["E_out"] @ tensors["E_in"].T).T[TOKENS]
    close(rezero.forward(tensors, PLAIN, TOKENS), want)


def test_at_a_zero_only_a_and_the_embeddings_learn() -> None:
    tensors = tensors_for(PLAIN)
    for i in range(2):
        tensors[f"layers.{i}.a"] = torch.zeros((), dtype=torch.float64, requires_grad=True)
    loss = rezero.loss(tensors, PLAIN, TOKENS, TARGETS)
    for name, g in zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True):
        assert bool(g.abs().sum() > 0) == (not name.split(".")[-1].startswith("W_")), name


def test_layers_do_not_share_a_and_the_sublayers_of_a_layer_do() -> None:
    tensors = tensors_for(PLAIN)
    states = rezero.hidden_states(with_a(tensors, 0.0, 0.7), PLAIN, TOKENS)
    assert torch.equal(states[1], states[0])
    assert torch.equal(states[2], states[0])
    assert not torch.allclose(states[3], states[2])
    assert not torch.allclose(states[4], states[3])


def test_a_folds_into_the_output_matrices() -> None:
    tensors = with_a(tensors_for(PLAIN), 0.3, -1.7)
    folded = with_a(tensors, 1.0, 1.0)
    for i, a in enumerate((0.3, -1.7)):
        for name in ("W_o", "W_oMLP"):
            folded[f"layers.{i}.{name}"] = a * tensors[f"layers.{i}.{name}"]
    close(rezero.forward(folded, PLAIN, TOKENS), rezero.forward(tensors, PLAIN, TOKENS))


def test_no_norm_so_large_embeddings_grow_the_mlp_quadratically() -> None:
    # Far from zero SiLU is the identity or 0, so that the MLP has degree two in h.
    tensors = tensors_for(PLAIN)
    for i in range(2):
        tensors[f"layers.{i}.W_o"] = torch.zeros(D, D).double()
    one = replace(PLAIN, n_layers=1)
    far, further = (
        rezero.hidden_states(tensors | {"E_in": c * tensors["E_in"]}, one, TOKENS)
        for c in (1e7, 2e7)
    )
    torch.testing.assert_close(further[2] - further[1], 4 * (far[2] - far[1]), rtol=1e-9, atol=0)


def test_the_mlp_reads_what_attention_has_added() -> None:
    tensors = tensors_for(PLAIN)
    one = replace(PLAIN, n_layers=1)
    # One token: attention adds a W_o W_v h whatever its queries and keys are.
    h = rezero.hidden_states(tensors, one, TOKENS[:, :1])
    p = basics.of_layer(tensors, 0)
    x = h[0] + p["a"] * (h[0] @ p["W_v"].T @ p["W_o"].T)
    close(h[1], x)
    gate = x @ p["W_nu"].T
    close(h[2], x + p["a"] * ((x @ p["W_u"].T * gate * torch.sigmoid(gate)) @ p["W_oMLP"].T))


def test_causality_padding_and_document_mask() -> None:
    tensors = tensors_for(PLAIN)
    whole = rezero.forward(tensors, PLAIN, TOKENS)
    close(rezero.forward(tensors, PLAIN, TOKENS[:, :3]), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = rezero.forward(tensors, PLAIN, padded, left_padding=torch.tensor([2, 2]))
    close(got[:, 2:], whole)
    document = torch.tensor([0, 0, 1, 1, 1])
    got = rezero.forward(tensors, PLAIN, TOKENS, mask=document[:, None] == document[None, :])
    close(got[:, 2:], rezero.forward(tensors, PLAIN, TOKENS[:, 2:]))
    both = rezero.forward(tensors, replace(PLAIN, causal=False), TOKENS)
    assert not torch.allclose(both[:, 0], whole[:, 0])


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_positions_enter_through_their_differences_alone(fraction: float) -> None:
    s = replace(PLAIN, rotary_fraction=fraction, causal=False)
    tensors = tensors_for(s)
    here = rezero.forward(tensors, s, TOKENS)
    close(rezero.forward(tensors, s, TOKENS, positions=torch.arange(5).expand(2, 5) + 7), here)
    order = torch.tensor([4, 2, 0, 1, 3])
    shuffled = rezero.forward(tensors, s, TOKENS[:, order])
    assert torch.allclose(shuffled, here[:, order], rtol=1e-11) == (fraction == 0.0)


def test_tied_equals_untied_with_one_matrix_and_gradients_add() -> None:
    tensors = tensors_for(PLAIN)
    tensors["E_out"] = tensors["E_in"].detach().clone().requires_grad_()
    tied = {n: t for n, t in tensors.items() if n != "E_out"}
    separate = rezero.loss(tensors, PLAIN, TOKENS, TARGETS)
    shared = rezero.loss(tied, replace(PLAIN, tied=True), TOKENS, TARGETS)
    close(shared, separate)
    one, two = torch.autograd.grad(separate, [tensors["E_in"], tensors["E_out"]])
    close(torch.autograd.grad(shared, [tied["E_in"]])[0], one + two)


def test_parameter_count_is_the_matrices_and_one_scalar_a_layer() -> None:
    shapes = rezero.shapes(rezero.Settings(24, 16), 32000, 1024, 4096)
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count == 16 * 1024**2 * 24 + 2 * 32000 * 1024 + 24
