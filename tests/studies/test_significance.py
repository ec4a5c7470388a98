"""The paired t-test against tables, and Holm's correction."""

import numpy as np
import pytest

from unitsphere.studies.core.statistics import holm, paired


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062), (3, 4.30265), (5, 2.77645), (10, 2.26216)])
def test_the_interval_is_by_student_s_table(n, t):
    gaps = np.random.default_rng(n).normal(size=n)
    found = paired(np.zeros(n), gaps)
    half = t * gaps.std(ddof=1) / n**0.5
    assert found.high - found.mean == pytest.approx(half, rel=1e-5)
    assert found.mean - found.low == pytest.approx(half, rel=1e-5)


def test_a_known_example():
    """Student's sleep data (Biometrika 6, 1908, p. 20): t = 4.06, p = 0.0028."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = paired(first, second)
    assert found.mean == pytest.approx(1.58)
    assert found.p == pytest.approx(0.00283, abs=1e-5)
    assert (found.low, found.high) == (
        pytest.approx(0.7001, abs=1e-4),
        pytest.approx(2.4599, abs=1e-4),
    )
    assert found.n == 10


def test_few_seeds_say_little():
    one = paired([2.0], [1.9])
    assert (one.mean, one.low, one.high, one.p) == (pytest.approx(-0.1), None, None, None)
    assert paired([2.0, 2.1], [1.9, 2.05]).p > 0.05
    same = paired([2.0, 2.5], [2.0, 2.5])
    assert (same.mean, same.p) == (0.0, 1.0)


def test_noise_alone_is_significant_as_often_as_it_should_be():
    random = np.random.default_rng(0)
    draws = random.normal(size=(400, 2, 3))
    share = np.mean([paired(a, b).p < 0.05 for a, b in draws])
    assert 0.03 < share < 0.07


def test_several_tests_are_corrected():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
