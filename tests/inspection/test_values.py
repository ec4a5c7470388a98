"""The probes' mathematics against known answers."""

import itertools
import math

import pytest
import torch

from unitsphere.inspection.values import (
    QUANTILES,
    angle,
    condition,
    distribution,
    effective_rank,
    entropy,
    flat,
    histogram,
    layers,
    number,
    singular,
)


def rotated(values, rows=6, columns=4):
    """A matrix of random orientation with these singular values."""
    generator = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.double))
    right, _ = torch.linalg.qr(
        torch.randn(columns, columns, generator=generator, dtype=torch.double)
    )
    return left[:, :columns] @ torch.diag(torch.tensor(values, dtype=torch.double)) @ right


def test_singular_values_and_condition_number_are_those_put_in():
    values = singular(rotated([8.0, 4.0, 2.0, 0.5]))
    torch.testing.assert_close(values, torch.tensor([8.0, 4.0, 2.0, 0.5]).double())
    assert float(condition(values)) == pytest.approx(16)
    assert float(condition(singular(torch.diag(torch.tensor([3.0, 0.0]))))) == math.inf


def test_effective_rank_counts_equal_directions():
    ranks = effective_rank(torch.tensor([[1.0, 1, 1, 1], [5, 0, 0, 0], [2, 2, 0, 0]]))
    torch.testing.assert_close(ranks, torch.tensor([4.0, 1.0, 2.0]))


def test_entropy_of_one_hot_and_uniform_weights():
    one_hot, uniform = torch.eye(8)[0], torch.full((8,), 1 / 8)
    torch.testing.assert_close(
        entropy(torch.stack([one_hot, uniform])), torch.tensor([0, math.log(8)])
    )


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 0.3, 45.0, 90.0, 179.999, 180.0])
def test_angle_of_a_known_rotation_at_any_length(degrees):
    turn = math.radians(degrees)
    a = torch.tensor([[3.0, 0.0]], dtype=torch.double)
    b = 7 * torch.tensor([[math.cos(turn), math.sin(turn)]], dtype=torch.double)
    assert float(angle(a, b)) == pytest.approx(degrees, rel=1e-6, abs=1e-12)


def test_an_angle_with_nothing_is_none():
    assert angle(torch.zeros(2), torch.ones(2)).isnan()


def test_a_distribution_has_exact_quantiles_mean_and_counts():
    found = distribution([("x", "0", torch.arange(101.0)), ("x", "1", torch.full((3,), 50.0))])
    assert found["x"]["labels"] == ["0", "1"]
    assert found["x"]["means"] == [50.0, 50.0]
    assert found["x"]["quantiles"][0] == [100 * q for q in QUANTILES]
    assert found["x"]["quantiles"][1] == [50.0] * len(QUANTILES)
    assert sum(found["x"]["counts"]) == 104
    assert (found["x"]["edges"][0], found["x"]["edges"][-1]) == (0.0, 100.0)


def test_bins_of_the_same_ratio_leave_out_what_is_not_positive():
    found = distribution([("x", "", torch.tensor([0.0, 0.01, 1.0, 100.0]))], logarithmic=True)["x"]
    ratios = [b / a for a, b in zip(found["edges"], found["edges"][1:], strict=False)]
    assert ratios == pytest.approx([10 ** (4 / 11)] * 11, rel=1e-4)
    assert sum(found["counts"]) == 3


def test_values_that_are_all_the_same_stand_in_the_middle_of_their_histogram():
    found = distribution([("x", "", 1 + 1e-8 * torch.randn(50, dtype=torch.double))])["x"]
    assert (found["edges"][0], found["edges"][-1]) == (0.95, 1.05)
    assert max(found["counts"]) == 50


def test_what_is_not_finite_is_none_and_no_live_figure():
    found = layers([("a", "0", 1.0), ("a", "1", math.inf), ("b", "", torch.tensor(2.0))])
    assert found == {
        "a": {"labels": ["0", "1"], "values": [1.0, None]},
        "b": {"labels": [""], "values": [2.0]},
    }
    assert flat(found) == {"a/0": 1.0, "b/all": 2.0}
    assert flat(distribution([("s", "0", torch.tensor([1.0, 3.0]))])) == {"s/0": 2.0}
    assert number(math.nan) is None
    assert number(1 / 3) == 0.333333


def test_values_that_differ_in_their_last_digits_have_bins_of_some_width():
    edges, counts = histogram(1 + torch.linspace(0, 3e-6, 200), logarithmic=False)
    assert sum(counts) == 200
    assert all(a < b for a, b in itertools.pairwise(edges))
