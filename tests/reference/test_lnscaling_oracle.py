"""Closed forms for the LN-scaling oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import basics, gpt, lnscaling

V, D, D_F = 11, 8, 12
PLAIN = lnscaling.Settings(n_layers=3, n_heads=2)
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])


def tensors_for(settings: lnscaling.Settings, seed: int = 0) -> dict[str, Tensor]:
    shapes = lnscaling.shapes(settings, V, D, D_F)
    return basics.random_tensors(shapes, seed, around_one=("gain_A", "gain_M", "gain_final"))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_the_norm_of_layer_l_has_mean_square_one_over_l() -> None:
    x, gain = 3 * torch.randn(4, D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    for layer in (1, 2, 5):
        y = lnscaling.scaled_norm(x, gain, 0.0, layer)
        close(y.square().mean(-1), torch.ones(4).double() / layer)


@pytest.mark.parametrize("tied", [False, True])
def test_one_layer_is_gpt_and_more_layers_fold_into_the_gains(tied: bool) -> None:
    s = replace(PLAIN, tied=tied)
    tensors = tensors_for(s)
    as_gpt = gpt.Settings(3, 2, tied=tied)
    one = replace(s, n_layers=1)
    close(
        lnscaling.forward(tensors, one, TOKENS),
        gpt.forward(tensors, replace(as_gpt, n_layers=1), TOKENS),
    )
    got = lnscaling.forward(tensors, s, TOKENS)
    assert not torch.allclose(gpt.forward(tensors, as_gpt, TOKENS), got)
    folded = dict(tensors)
    for name, divisor in (("layers.1", 2), ("layers.2", 3)):
        for gain in ("gain_A", "gain_M"):
            folded[f"{name}.{gain}"] = tensors[f"{name}.{gain}"] / math.sqrt(divisor)
    close(gpt.forward(folded, as_gpt, TOKENS), got)


def test_values_shrink_with_depth_when_attention_is_all_there_is() -> None:
    # Identity values on one token: layer l adds RMSNorm(h)/sqrt(l), which is h's direction.
    tensors = tensors_for(PLAIN)
    for i in range(3):
        p = f"layers.{i}."
        tensors[p + "W_v"] = tensors[p + "W_o"] = torch.eye(D).double()
        tensors[p + "W_oMLP"] = torch.zeros(D, D_F).double()
        tensors[p + "gain_A"] = torch.ones(D).double()
    s = replace(PLAIN, eps=0.0)
    states = lnscaling.hidden_states(tensors, s, TOKENS[:, :1])
    rms = [float(h[0, 0].detach().square().mean().sqrt()) for h in states]
    for layer in (1, 2, 3):
        added = rms[2 * layer - 1] - rms[2 * layer - 2]
        assert added == pytest.approx(1 / math.sqrt(layer), rel=1e-12)


def test_zero_output_matrices_make_the_block_the_identity() -> None:
    tensors = tensors_for(PLAIN)
    for name in tensors:
        if name.endswith(("W_o", "W_oMLP")):
            tensors[name] = torch.zeros_like(tensors[name])
    for state in lnscaling.hidden_states(tensors, PLAIN, TOKENS):
        assert torch.equal(state, tensors["E_in"][TOKENS])


def test_the_final_norm_is_not_scaled() -> None:
    tensors = tensors_for(PLAIN)
    tensors["gain_final"] = torch.ones(D).double()
    tensors["E_out"] = torch.eye(D).double()
    s = replace(PLAIN, eps=0.0)
    close(
        lnscaling.forward(tensors, s, TOKENS).square().mean(-1),
        torch.ones(TOKENS.shape, dtype=torch.float64),
    )


def test_causality_padding_and_document_mask() -> None:
    tensors = tensors_for(PLAIN)
    whole = lnscaling.forward(tensors, PLAIN, TOKENS)
    close(lnscaling.forward(tensors, PLAIN, TOKENS[:, :3]), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = lnscaling.forward(tensors, PLAIN, padded, left_padding=torch.tensor([2, 2]))
    close(got[:, 2:], whole)
    document = torch.tensor([0, 0, 1, 1, 1])
    got = lnscaling.forward(tensors, PLAIN, TOKENS, mask=document[:, None] == document[None, :])
    close(got[:, 2:], lnscaling.forward(tensors, PLAIN, TOKENS[:, 2:]))
    both = lnscaling.forward(tensors, replace(PLAIN, causal=False), TOKENS)
    assert not torch.allclose(both[:, 0], whole[:, 0])


def test_gradients_reach_every_tensor_and_a_zero_head_costs_log_v() -> None:
    for settings in (PLAIN, replace(PLAIN, tied=True, rotary_fraction=0.5)):
        tensors = tensors_for(settings)
        loss = lnscaling.loss(tensors, settings, TOKENS, TARGETS)
        gradients = torch.autograd.grad(loss, list(tensors.values()))
        assert all(g.abs().sum() > 0 for g in gradients)
    tensors = tensors_for(PLAIN) | {"E_out": torch.zeros(V, D, dtype=torch.float64)}
    got = lnscaling.loss(tensors, PLAIN, TOKENS, TARGETS)
    close(got, torch.tensor(math.log(V), dtype=torch.float64))


def test_it_has_as_many_parameters_as_gpt() -> None:
    shapes = lnscaling.shapes(lnscaling.Settings(24, 16), 32000, 1024, 4096)
    assert sum(math.prod(shape) for shape in shapes.values()) == 468_239_360


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_positions_enter_through_their_differences_alone(fraction: float) -> None:
    s = replace(PLAIN, rotary_fraction=fraction, causal=False)
    tensors = tensors_for(s)
    here = lnscaling.forward(tensors, s, TOKENS)
    close(lnscaling.forward(tensors, s, TOKENS, positions=torch.arange(5).expand(2, 5) + 7), here)
    order = torch.tensor([4, 2, 0, 1, 3])
    shuffled = lnscaling.forward(tensors, s, TOKENS[:, order])
    assert torch.allclose(shuffled, here[:, order], rtol=1e-11) == (fraction == 0.0)
