import itertools

import pytest

from unitsphere.errors import UserError
from unitsphere.training.optim.schedule import ScheduleConfig, factor
from unitsphere.training.recipes import config_from


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


def test_an_end_after_the_run_is_refused_with_the_config():
    data = {"architecture": "gpt", "train": {"steps": 300}, "schedule": {"end": 301.0}}
    with pytest.raises(UserError, match=r"schedule\.end 301 is after the run's 300 steps"):
        config_from(data, "mine.toml")


@pytest.mark.parametrize(
    "settings", [{"warmup": -1}, {"final": 1.5}, {"decay": 0.0}, {"decay": 1.5}]
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
