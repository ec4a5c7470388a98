import pytest

from unitsphere.bench.measure import (
    Interval,
    interval,
    is_tie,
    noise_floor,
    ratios,
    rotated,
    si,
    size,
)


def test_ratios_are_taken_round_by_round():
    """A machine that slows down by a half meanwhile changes no ratio."""
    baseline = [100.0, 120.0, 150.0, 130.0]
    found = ratios([1.1 * time for time in baseline], baseline)
    assert (found.median, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_the_interval_holds_the_median_is_reproducible_and_narrows():
    few = interval([0.9, 1.0, 1.1, 1.2])
    assert few == interval([0.9, 1.0, 1.1, 1.2])
    assert few.median == pytest.approx(1.05)
    assert 0.9 <= few.low < few.median < few.high <= 1.2
    many = interval([0.9, 1.0, 1.1, 1.2] * 20)
    assert many.high - many.low < 0.7 * (few.high - few.low)


def test_a_ratio_within_the_noise_of_two_copies_is_a_tie():
    floor = noise_floor(Interval(1.01, 0.98, 1.03))
    assert floor == pytest.approx(0.03)
    assert is_tie(Interval(0.975, 0.9, 1.0), floor)
    assert is_tie(Interval(1.02, 1.01, 1.05), floor)
    assert not is_tie(Interval(1.04, 0.99, 1.05), floor)
    assert not is_tie(Interval(0.96, 0.9, 1.0), floor)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (240_000, "234 KiB"),
        (1.5 * 2**20, "1,536 KiB"),
        (12.4 * 2**20, "12 MiB"),
        (1.25 * 2**30, "1.25 GiB"),
    ],
)
def test_bytes_are_in_a_unit_that_shows_them(count, said):
    assert size(count) == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(8.63e10, "86.3 G"), (9.997e11, "1 T"), (2.25e15, "2.25 P"), (5e7, "0.05 G")],
)
def test_a_rate_has_three_digits_and_a_unit(rate, said):
    assert si(rate) == said


def test_every_arm_is_first_equally_often():
    orders = [rotated("abc", number) for number in range(6)]
    assert orders[:3] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert orders[3:] == orders[:3]
