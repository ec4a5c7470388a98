import dataclasses
import itertools
import math

import numpy as np
import pytest

from unitsphere.errors import UserError
from unitsphere.training.optim.schedule import ScheduleConfig, area, factor
from unitsphere.training.recipes import config_from
from unitsphere.training.run import train


def factors(steps: int = 100, **settings) -> list[float]:
    config = ScheduleConfig(**settings)
    return [factor(config, step, steps) for step in range(steps)]


def test_warmup_rises_evenly_to_the_peak_in_steps_or_as_a_fraction():
    for warmup in (10, 0.1):
        rates = factors(kind="constant", warmup=warmup)
        assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
        assert set(rates[10:]) == {1.0}


def test_a_warmup_of_one_is_one_step():
    assert set(factors(kind="constant", warmup=1)) == {1.0}


def test_without_warmup_the_first_step_has_the_peak():
    for kind in ("cosine", "linear", "wsd", "constant"):
        assert factors(kind=kind)[0] == 1.0


@pytest.mark.parametrize(("kind", "middle"), [("cosine", 0.55), ("linear", 0.55)])
def test_cosine_and_linear_pass_their_middle_and_end_at_final(kind, middle):
    rates = factors(kind=kind, warmup=20, final=0.1)
    assert rates[60] == pytest.approx(middle)
    assert rates == sorted(rates[:20]) + sorted(rates[20:], reverse=True)
    assert factor(ScheduleConfig(kind=kind, warmup=20, final=0.1), 100, 100) == pytest.approx(0.1)


def test_cosine_falls_slower_than_linear_at_first_and_faster_later():
    cosine, linear = factors(kind="cosine"), factors(kind="linear")
    assert cosine[25] > linear[25]
    assert cosine[75] < linear[75]


def test_wsd_is_constant_then_linear_over_the_last_part():
    rates = factors(kind="wsd", warmup=5, decay=0.4)
    assert set(rates[4:61]) == {1.0}
    assert rates[80] == pytest.approx(0.5)


def test_the_last_step_still_learns():
    for kind in ("cosine", "linear", "wsd"):
        assert factors(kind=kind)[-1] > 0


def test_a_warmup_longer_than_the_run_only_warms_up():
    assert factors(steps=10, warmup=100)[-1] == pytest.approx(0.1)


FALLS = {
    "power-0.5": ({"fall": "power"}, lambda t: 1 - np.sqrt(t), 1 / 3),
    "power-0.4": ({"fall": "power", "power": 0.4}, lambda t: 1 - t**0.4, 0.4 / 1.4),
    "cool-1.2": ({"fall": "cool"}, lambda t: (1 - t) ** 1.2, 1 / 2.2),
    "cool-2": ({"fall": "cool", "power": 2.0}, lambda t: (1 - t) ** 2, 1 / 3),
    "log-0.1": (
        {"fall": "log"},
        lambda t: 1 - np.log(1 + t / 0.1) / np.log(1 + 1 / 0.1),
        1 / math.log(11) - 0.1,
    ),
    "log-1": (
        {"fall": "log", "rho": 1.0},
        lambda t: 1 - np.log(1 + t) / np.log(2),
        1 / math.log(2) - 1,
    ),
    "linear": ({}, lambda t: 1 - t, 1 / 2),
}
"""Settings of a fall, its formula with t from 0 to 1, and the formula's mean (its integral)."""


@pytest.mark.parametrize(("settings", "form", "mean"), FALLS.values(), ids=FALLS)
def test_each_fall_is_its_formula_after_the_hold_and_its_area_is_the_mean(settings, form, mean):
    steps, held, last = 400, 100, 0.1
    rates = factors(steps, kind="wsd", warmup=20, decay=0.75, final=last, **settings)
    t = np.arange(steps - held, dtype=np.float64) / (steps - held)
    assert rates[19 : held + 1] == [1.0] * (held - 18)
    np.testing.assert_allclose(rates[held:], last + (1 - last) * form(t), rtol=1e-14)
    assert rates[held:] == sorted(rates[held:], reverse=True)
    assert rates[-1] > last

    config = ScheduleConfig("wsd", warmup=20, decay=0.75, final=last, **settings)
    assert area(config, steps) == pytest.approx(sum(rates) / steps, rel=1e-14)
    assert factor(config, steps, steps) == pytest.approx(last, rel=1e-14)
    whole = ScheduleConfig("wsd", decay=1.0, **settings)
    assert area(whole, 10_000) == pytest.approx(mean, abs=1e-3)


def test_the_power_cool_down_is_a_straight_power_of_the_steps_that_are_left():
    """As modded-nanogpt writes it: min(peak, c · (T − step)^1.2)."""
    rates = factors(200, kind="wsd", decay=0.4, fall="cool")
    c = 1 / 80**1.2
    assert rates == pytest.approx([min(1.0, c * (200 - step) ** 1.2) for step in range(200)])


def test_a_linear_fall_over_the_whole_run_is_the_linear_schedule():
    same = {"warmup": 7, "final": 0.1, "end": 0.9}
    assert factors(kind="wsd", decay=1.0, **same) == factors(kind="linear", **same)


def test_the_area_of_a_hold_and_of_a_warm_up():
    assert area(ScheduleConfig("constant"), 7) == 1.0
    assert area(ScheduleConfig("wsd", decay=0.7), 10_000) == pytest.approx(0.65, abs=1e-3)
    assert area(ScheduleConfig("constant", warmup=4), 4) == pytest.approx((1 + 2 + 3 + 4) / 16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear", "fall": "log"}, "fall log is for schedule.kind wsd, not linear"),
        ({"kind": "wsd", "power": 2.0}, "power 2 is for schedule.fall power or cool, not linear"),
        ({"kind": "wsd", "fall": "cool", "power": 0.0}, "power must be a number above 0: 0"),
        ({"kind": "wsd", "fall": "log", "rho": -1.0}, "rho must be a number above 0: -1"),
        ({"kind": "wsd", "fall": "log", "rho": math.nan}, "rho must be a number above 0: nan"),
    ],
)
def test_a_fall_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=rf"^schedule\.{message}"):
        ScheduleConfig(**settings)


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("end", [80, 0.8])
def test_after_the_end_the_rate_stays_at_final(kind, end):
    rates = factors(kind=kind, warmup=20, final=0.1, end=end)
    assert rates[:80] == factors(steps=80, kind=kind, warmup=20, final=0.1, decay=0.25)
    assert rates[80:] == pytest.approx([0.1] * 20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"end": 0.0}, "end must be a number above 0: 0"),
        ({"end": float("nan")}, "end must be a number above 0: nan"),
        ({"end": 0.2, "warmup": 0.3}, r"end 0\.2 comes before the warm-up of 0\.3"),
        ({"end": 200, "warmup": 300}, "end 200 comes before the warm-up of 300"),
        ({"end": 0.5, "kind": "constant"}, "end 0.5 is .* a constant schedule has none"),
        ({"end": 0.5, "kind": "ramp"}, "end 0.5 is .* a ramp schedule has none"),
    ],
)
def test_an_end_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=f"schedule.{message}"):
        ScheduleConfig(**settings)


@pytest.mark.parametrize(("warmup", "end"), [(100, 0.1), (0.5, 20)])
def test_an_end_in_the_warm_up_is_refused_once_the_steps_are_known(warmup, end):
    schedule = {"warmup": warmup, "end": end}
    data = {"architecture": "gpt", "train": {"steps": 200}, "schedule": schedule}
    with pytest.raises(UserError, match=f"end {end:g} comes before the warm-up of 100 steps"):
        config_from(data, "mine.toml")


def test_a_recipe_that_is_shortened_to_less_than_its_warm_up_still_runs():
    assert factors(steps=10, warmup=100, end=0.5)[-1] == pytest.approx(0.1)


def test_an_end_after_the_run_is_refused_with_the_config():
    data = {"architecture": "gpt", "train": {"steps": 300}, "schedule": {"end": 301.0}}
    with pytest.raises(UserError, match=r"schedule\.end 301 is after the run's 300 steps"):
        config_from(data, "mine.toml")


@pytest.mark.parametrize(
    "settings",
    [{"warmup": -1}, {"warmup": math.inf}, {"final": 1.5}, {"decay": 0.0}, {"decay": 1.5}],
)
def test_impossible_settings_are_refused_by_name(settings):
    with pytest.raises(UserError, match=f"schedule.{next(iter(settings))}"):
        ScheduleConfig(**settings)


def test_a_ramp_climbs_by_the_same_amount_up_to_the_peak():
    assert factors(kind="ramp", steps=4) == [0.25, 0.5, 0.75, 1.0]


def test_a_ramp_with_a_start_climbs_by_the_same_ratio():
    rates = factors(kind="ramp", start=1e-3, steps=7)
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == 1.0
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([10**0.5] * 6)


def test_a_ramp_refuses_a_warmup_and_an_impossible_start():
    with pytest.raises(UserError, match=r"schedule\.warmup must be 0"):
        ScheduleConfig(kind="ramp", warmup=0.1)
    with pytest.raises(UserError, match=r"schedule\.start"):
        ScheduleConfig(kind="ramp", start=1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decay": 0.4}, "schedule.decay 0.4 is for schedule.kind wsd, not cosine: it is not used"),
        ({"kind": "wsd", "decay": 0.4}, ""),
        ({"kind": "wsd", "rho": 0.3}, "schedule.rho 0.3 is for schedule.fall log, not linear"),
        ({"kind": "wsd", "fall": "log", "rho": 0.3}, ""),
        ({"start": 0.1}, "schedule.start 0.1 is for schedule.kind ramp, not cosine"),
        ({"kind": "linear"}, ""),
    ],
)
def test_a_run_says_which_numbers_its_schedule_does_not_read(
    tiny, tmp_path, capsys, settings, said
):
    """It trains: folders of runs that were given one load, as ever."""
    config = dataclasses.replace(tiny(steps=1), schedule=ScheduleConfig(**settings))
    train(config, tmp_path / "run")
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("it is not used") == (said != "")
