"""Fits against numpy's own, intervals that hold the truth as often as they say, the Z-test."""

import math

import numpy as np
import pytest

from unitsphere.studies.core.statistics import fit, same_exponent, z_test

DRAWS = 1500


def noisy(rng: np.random.Generator, x: np.ndarray, coefficient: float, exponent: float):
    return coefficient * x**exponent * np.exp(0.05 * rng.standard_normal(len(x)))


def test_exact_points_give_the_law_back():
    x = np.array([1e15, 3e16, 2e17, 1e19])
    found = fit(x, 7e-3 * x**-0.31)
    assert found.exponent == pytest.approx(-0.31)
    assert found.coefficient == pytest.approx(7e-3)
    assert found.at(1e21) == pytest.approx(7e-3 * 1e21**-0.31)
    low, high = found.interval(1e21)
    assert low == pytest.approx(high)


def test_equal_values_have_an_exponent_of_zero_without_any_doubt():
    """Such as the best batch of all sizes: scipy's regression may say NaN."""
    found = fit([1e6, 2e6, 8e6], [64.0, 64.0, 64.0])
    assert (found.exponent, found.exponent_variance) == (0, 0)
    assert found.exponent_interval == (0, 0)
    assert found.interval(1e9) == pytest.approx((64, 64))


def test_exponent_and_its_variance_are_numpy_s():
    rng = np.random.default_rng(0)
    x = np.geomspace(1e6, 1e9, 7)
    y = noisy(rng, x, 3.0, 0.4)
    theta, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    found = fit(x, y)
    assert found.exponent == pytest.approx(theta[0])
    assert found.coefficient == pytest.approx(math.exp(theta[1]))
    assert found.exponent_variance == pytest.approx(covariance[0, 0])
    # The delta method at any x, with numpy's own uncentred covariance.
    jacobian = np.array([math.log(1e10), 1.0])
    sigma = math.sqrt(jacobian @ covariance @ jacobian)
    low, high = found.interval(1e10)
    assert math.log(high / low) == pytest.approx(2 * 2.5705818 * sigma)  # t(.975, 5)


@pytest.mark.parametrize("points", [3, 4, 6, 12])
def test_intervals_hold_the_truth_as_often_as_they_say(points):
    rng = np.random.default_rng(1)
    x = np.geomspace(3e7, 1e9, points)
    held = np.zeros(3)
    for _ in range(DRAWS):
        found = fit(x, noisy(rng, x, 12.0, -0.37))
        for place, (interval, truth) in enumerate(
            [
                (found.exponent_interval, -0.37),
                (found.interval(1.0), 12.0),
                (found.interval(1e10), 12.0 * 1e10**-0.37),
            ]
        ):
            held[place] += interval[0] <= truth <= interval[1]
    assert (np.abs(held / DRAWS - 0.95) < 0.02).all(), held / DRAWS


def test_an_interval_far_from_points_that_scatter_has_an_upper_end():
    """Best sizes at computes that lie close: the interval of the coefficient was an error."""
    found = fit([1e15, 1.1e15, 1.2e15], [1e6, 3e6, 1.2e6])
    low, high = found.interval(1.0)
    assert low == 0
    assert 1e300 < high < math.inf


def test_two_points_have_a_law_and_no_interval():
    found = fit([1.0, 10.0], [2.0, 20.0])
    assert found.at(100.0) == pytest.approx(200.0)
    assert found.exponent_interval is None
    assert found.interval(100.0) is None
    assert same_exponent(found, found) is None


@pytest.mark.parametrize(
    ("x", "y"), [([1.0], [2.0]), ([3.0, 3.0], [1.0, 2.0]), ([1.0, -1.0], [1.0, 1.0])]
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_no_law_can_be_fitted_to_is_an_error(x, y):
    with pytest.raises(ValueError, match="power law"):
        fit(x, y)


def test_equal_exponents_are_told_apart_as_rarely_as_the_level_says():
    rng = np.random.default_rng(2)
    x = np.geomspace(1e15, 1e20, 40)
    false = different = 0
    for _ in range(300):
        a, b = fit(x, noisy(rng, x, 9.0, 0.47)), fit(x, noisy(rng, x, 4.0, 0.47))
        false += same_exponent(a, b).p < 0.05
        different += same_exponent(a, fit(x, noisy(rng, x, 9.0, 0.49))).p < 0.05
    assert 0.02 <= false / 300 <= 0.08
    assert different / 300 > 0.9


def test_z_test_s_p_value_is_two_sided():
    assert z_test(1.959964, 0.5, 0.5).p == pytest.approx(0.05, abs=1e-6)
    assert z_test(-1.959964, 0.5, 0.5).p == pytest.approx(0.05, abs=1e-6)
    assert z_test(0.0, 0.0, 0.0).p == 1
    assert z_test(1e-9, 0.0, 0.0).p == 0
