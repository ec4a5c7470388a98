"""Closed forms for the pieces that the reference oracles share."""

import math

import pytest
import torch
from torch import Tensor

from reference import basics

TOKENS = torch.arange(10).reshape(2, 5)
EVERYWHERE = basics.visible(TOKENS, causal=False, mask=None, left_padding=None)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def close(a: Tensor | float, b: Tensor | float) -> None:
    one, other = torch.as_tensor(a), torch.as_tensor(b, dtype=torch.float64)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_rope_is_a_rotation_of_the_first_features(fraction: float) -> None:
    x = randn(2, 5, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 7, 99, 1000, 5]])
    turned = basics.rope(x, positions, fraction)
    rotated = int(8 * fraction)
    close((turned * turned).sum(-1), (x * x).sum(-1))
    assert torch.equal(turned[..., rotated:], x[..., rotated:])
    close(turned[:, 0], x[:, 0])
    assert not torch.allclose(turned[:, 1, :rotated], x[:, 1, :rotated])


def test_rope_turns_the_first_pair_by_the_position_and_the_second_by_a_hundredth() -> None:
    east = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64).expand(1, 1, 4)
    turned = basics.rope(east, torch.tensor([[3]]))[0, 0]
    want = [math.cos(3), math.cos(0.03), math.sin(3), math.sin(0.03)]
    close(turned, torch.tensor(want, dtype=torch.float64))


def test_rope_scores_depend_on_the_distance_alone() -> None:
    q, k = randn(2, 5, 8), randn(2, 5, 8).flip(0)
    here = torch.arange(5).expand(2, 5)
    scores = basics.rope(q, here) @ basics.rope(k, here).transpose(1, 2)
    moved = basics.rope(q, here + 11) @ basics.rope(k, here + 11).transpose(1, 2)
    close(scores, moved)


def test_an_odd_head_leaves_its_last_feature() -> None:
    x = randn(1, 4, 5)
    turned = basics.rope(x, torch.arange(4)[None])
    assert torch.equal(turned[..., 4], x[..., 4])
    close((turned * turned).sum(-1), (x * x).sum(-1))


def test_visible_combines_causality_mask_and_padding() -> None:
    document = torch.tensor([0, 0, 1, 1, 1])
    mask = document[:, None] == document[None, :]
    see = basics.visible(TOKENS, causal=True, mask=mask, left_padding=torch.tensor([0, 1]))
    for b in range(2):
        for i in range(5):
            for j in range(5):
                same = int(document[i]) == int(document[j])
                assert bool(see[b, i, j]) == (j <= i and same and j >= b)


def test_positions_start_after_the_padding() -> None:
    got = basics.positions_of(TOKENS, torch.tensor([0, 2]))
    assert got.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]


def test_equal_scores_average_the_visible_values() -> None:
    v = randn(2, 5, 3)
    q = torch.zeros(2, 5, 3, dtype=torch.float64)
    see = basics.visible(TOKENS, causal=True, mask=None, left_padding=None)
    mean = v.cumsum(1) / torch.arange(1, 6)[None, :, None]
    close(basics.attend(q, q, v, 1.0, see), mean)


def test_a_large_factor_picks_the_best_key() -> None:
    v, q = randn(2, 5, 5), 1000 * torch.eye(5, dtype=torch.float64).expand(2, 5, 5)
    close(basics.attend(q, q, v, 1.0, EVERYWHERE), v)


def test_softmax_without_a_visible_key_is_zero_with_a_finite_gradient() -> None:
    scores = randn(2, 5, 5).requires_grad_()
    see = EVERYWHERE.clone()
    see[0, 2] = False
    weights = basics.softmax(scores, see)
    assert torch.equal(weights[0, 2], torch.zeros(5, dtype=torch.float64))
    close(weights.sum(-1)[1], torch.ones(5))
    (weights * randn(2, 5, 5)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_unit_has_length_one_and_leaves_zero() -> None:
    x = randn(4, 6)
    close(basics.unit(x).square().sum(-1), torch.ones(4))
    close(basics.unit(x, 0).square().sum(0), torch.ones(6))
    assert torch.equal(basics.unit(torch.zeros(3).double()), torch.zeros(3).double())


def test_activations_at_known_points() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    close(basics.silu(x) - basics.silu(-x), x)
    close(basics.gelu(x) - basics.gelu(-x), x)
    close(basics.silu(x)[2], 3 / (1 + math.exp(-3)))
    close(basics.gelu(x)[2], 3 * (1 - math.erfc(3 / math.sqrt(2)) / 2))
    assert basics.relu(x).tolist() == [0, 0, 3]
    assert basics.relu2(x).tolist() == [0, 0, 9]


def test_cross_entropy_of_known_distributions() -> None:
    even = torch.full((2, 5, 7), 3.0, dtype=torch.float64)
    targets = TOKENS % 7
    close(basics.cross_entropy(even, targets), math.log(7))
    odds = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).expand(1, 3, 2)
    targets = torch.tensor([[1, 0, -100]])
    close(basics.cross_entropy(odds, targets), (math.log(4 / 3) + math.log(4)) / 2)


def test_label_smoothing_mixes_in_the_mean_over_the_vocabulary() -> None:
    odds = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).expand(1, 3, 2)
    targets = torch.tensor([[1, -100, -100]])
    mean = (math.log(4 / 3) + math.log(4)) / 2
    for smoothing in (0.0, 0.1, 1.0):
        want = (1 - smoothing) * math.log(4 / 3) + smoothing * mean
        close(basics.cross_entropy(odds, targets, smoothing), want)
    logits, targets = randn(2, 5, 7), TOKENS % 7
    targets[0, 2] = -100
    want = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=-100, label_smoothing=0.1
    )
    close(basics.cross_entropy(logits, targets, 0.1), want)


def test_the_source_is_seen_whole_but_for_its_padding() -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    memory = torch.zeros(2, 3, 4).double()
    for b in range(2):
        for i in range(5):
            row = basics.visible_memory(TOKENS, memory, real)[b, i]
            assert torch.equal(row, real[b])
    assert basics.visible_memory(TOKENS, memory, None).tolist() == [[[True] * 3] * 5] * 2
    see = basics.visible_source(TOKENS[:, :3], real)
    assert torch.equal(see, real[:, None, :].expand(2, 3, 3))
    assert bool(basics.visible_source(TOKENS, None).all())


def test_float32_is_refused() -> None:
    with pytest.raises(TypeError, match="E_in"):
        basics.require_double({"E_in": torch.zeros(2)})


def test_a_stored_scale_is_restored() -> None:
    stored = {"s": torch.full((3,), 0.25, dtype=torch.float64)}
    close(basics.effective(stored, "s", basics.Scale(init=2.0, scale=0.25)), torch.full((3,), 2.0))
    close(basics.effective({}, "s", basics.Scale("fixed", 0.7)), 0.7)
