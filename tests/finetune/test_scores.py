"""Accuracy, F1 and Matthews correlation against values worked out by hand."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unitsphere.finetune.results import accuracy, f1, matthews, mean_of, scores

# A busy machine generates slowly.
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# 3 hits, 1 false alarm, 2 misses, 4 right rejections.
TRUTH = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
SAID = [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]


def test_by_hand():
    assert accuracy(TRUTH, SAID) == 0.7
    assert f1(TRUTH, SAID) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert matthews(TRUTH, SAID) == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))


def test_three_classes_by_hand():
    # Table of truth by prediction: [[2, 1, 0], [0, 1, 1], [0, 0, 1]], so t = 3, 2, 1, p = 2, 2, 2.
    truth, said = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]
    wanted = (4 * 6 - (3 * 2 + 2 * 2 + 1 * 2)) / math.sqrt((36 - 12) * (36 - 14))
    assert matthews(truth, said, 3) == pytest.approx(wanted)
    found = scores(truth, said, 3)
    assert found["f1"] is None
    assert found["accuracy"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("truth", "said", "wanted"),
    [
        ([0, 0], [0, 0], (1.0, 0.0, 0.0)),
        ([1, 1], [1, 1], (1.0, 1.0, 0.0)),
        ([0, 1], [0, 0], (0.5, 0.0, 0.0)),
        ([0, 1], [1, 1], (0.5, 2 / 3, 0.0)),
        ([0, 0], [1, 1], (0.0, 0.0, 0.0)),
        ([0, 1], [1, 0], (0.0, 0.0, -1.0)),
        ([0, 1], [0, 1], (1.0, 1.0, 1.0)),
    ],
)
def test_edges(truth, said, wanted):
    assert tuple(scores(truth, said, 2).values()) == pytest.approx(wanted)


pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=50)


@relaxed
@given(pairs)
def test_of_two_classes_matthews_is_the_correlation_of_the_two(pairs):
    truth, said = ([min(one, 1) for one in side] for side in zip(*pairs, strict=True))
    n = len(truth)
    t, p = sum(truth) / n, sum(said) / n
    covariance = sum((a - t) * (b - p) for a, b in zip(truth, said, strict=True)) / n
    spread = math.sqrt(t * (1 - t) * p * (1 - p))
    assert matthews(truth, said) == pytest.approx(covariance / spread if spread else 0, abs=1e-12)


def test_mean_and_standard_error():
    found = mean_of([1.0, 2.0, 4.0])
    assert found["mean"] == pytest.approx(7 / 3)
    assert found["standard_error"] == pytest.approx(math.sqrt(7 / 9))
    assert mean_of([0.5]) == {"mean": 0.5, "standard_error": None}
