"""A run that is to end when its loss diverges ends there, finished and not failed."""

import dataclasses
import math

import pytest
import torch
from run_folders import KilledError, die, figures, weights

from unitsphere.errors import UserError
from unitsphere.training import guard
from unitsphere.training.guard import MARGIN, PATIENCE, SMOOTHED, Watch
from unitsphere.training.load import last_state
from unitsphere.training.optim.schedule import ScheduleConfig
from unitsphere.training.run import train


def watched(losses: list[float]) -> list[int | None]:
    """What is known of divergence after each loss."""
    watch, found = Watch(), []
    for step, loss in enumerate(losses, 1):
        watch = watch.after(step, loss)
        found.append(watch.diverged)
    return found


def test_a_loss_that_stays_above_its_lowest_has_diverged_where_that_began():
    level = [3.0] * 20
    high = [3.0 + 2 * MARGIN] * 40
    found = watched(level + high)
    # Half of the window above by twice the margin: the mean is above by the margin.
    first = len(level) + SMOOTHED // 2
    assert found[first + PATIENCE - 3] is None
    assert found[first + PATIENCE - 2] == first
    assert set(found[first + PATIENCE - 2 :]) == {first}


def test_a_loss_that_comes_back_within_patience_has_not():
    spike = [3.0] * 20 + [3.0 + 1.5 * MARGIN * SMOOTHED] + [3.0] * 40
    assert set(watched(spike * 2)) == {None}
    # Above by the margin from the window's last step on, and as many steps after the last high one.
    short = [3.0] * 20 + [3.0 + MARGIN] * (PATIENCE + SMOOTHED - 2) + [3.0] * 40
    assert set(watched(short * 2)) == {None}
    long = [3.0] * 20 + [3.0 + MARGIN] * (PATIENCE + SMOOTHED - 1) + [3.0] * 40
    assert watched(long)[-1] == 20 + SMOOTHED


def test_a_falling_a_level_and_a_slowly_rising_loss():
    assert set(watched([9 - 0.05 * k for k in range(100)])) == {None}
    assert set(watched([2.0] * 100)) == {None}
    assert watched([2 + 0.02 * k for k in range(100)])[-1] is not None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_has_diverged_at_once(loss):
    assert watched([3.0, 2.9, loss, 2.8]) == [None, None, 3, 3]


STEPS = 90


def test_what_was_already_too_high_has_diverged_where_that_began():
    high = [3.0] * 20 + [3.0 + MARGIN] * (SMOOTHED + 5)
    assert watched([*high, math.nan])[-2:] == [None, 20 + SMOOTHED]
    assert watched([*high, *[3.0] * SMOOTHED, math.nan])[-1] == 20 + 2 * SMOOTHED + 6


def ramp(tiny, **train_keys):
    """A run whose rate climbs far beyond what any model bears."""
    config = tiny(
        lr=30.0, **({"steps": STEPS, "save_every": 15, "stop_at_divergence": True} | train_keys)
    )
    return dataclasses.replace(config, schedule=ScheduleConfig(kind="ramp", start=1e-6))


def test_a_ramp_ends_finished_where_the_loss_diverges(tiny, tmp_path, capsys):
    result = train(ramp(tiny), tmp_path / "run")
    records, state = figures(tmp_path / "run"), last_state(tmp_path / "run")
    assert result.step < STEPS
    assert math.isnan(result.val_loss)
    assert [r["step"] for r in records if "diverged" in r] == [result.step]
    assert records[-1]["lr"] == pytest.approx(30 * 1e-6 ** (1 - (result.step - 1) / (STEPS - 1)))
    assert state is not None
    assert state.watch.diverged is not None
    assert state.watch.diverged <= result.step
    assert f"the loss diverged at step {state.watch.diverged}" in capsys.readouterr().err
    assert not train(ramp(tiny), tmp_path / "run").trained
    assert "is finished" in (said := capsys.readouterr().err)
    assert "diverged; nothing to train" in said


def test_it_ends_the_same_after_an_interruption(tiny, tmp_path):
    whole = train(ramp(tiny, sample_every=20), tmp_path / "whole")
    with pytest.raises(KilledError):
        train(ramp(tiny, sample_every=20), tmp_path / "broken", sampler=die)
    train(ramp(tiny, sample_every=20), tmp_path / "broken")
    assert whole.step > 20
    assert figures(tmp_path / "broken") == figures(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "broken")[name], tensor)


def test_a_gradient_that_is_not_finite_ends_it_too_and_without_the_switch_is_an_error(
    tiny, tmp_path, monkeypatch
):
    from unitsphere.training import step as training_step

    clip = training_step.clip_gradients
    calls = iter(range(1000))

    def broken(*arguments):
        norm = clip(*arguments)
        return norm * math.nan if next(calls) == 4 else norm

    monkeypatch.setattr(training_step, "clip_gradients", broken)
    result = train(ramp(tiny), tmp_path / "run")
    assert result.step == 5
    assert figures(tmp_path / "run")[-1]["diverged"] == 5
    calls = iter(range(1000))
    with pytest.raises(UserError, match="step 5: loss"):
        train(ramp(tiny, stop_at_divergence=False), tmp_path / "other")


@pytest.mark.parametrize("on_spike", ["skip", "rollback"])
def test_a_step_that_is_left_out_does_not_end_it_but_too_many_do(
    on_spike, tiny, tmp_path, monkeypatch
):
    from unitsphere.training import step as training_step

    clip, broken = training_step.clip_gradients, {4}
    number = training_step.train_step

    def counted(model, optimizer, gradients, step, *rest):
        def harmed(*arguments):
            return clip(*arguments) * (math.nan if step in broken else 1)

        monkeypatch.setattr(training_step, "clip_gradients", harmed)
        return number(model, optimizer, gradients, step, *rest)

    monkeypatch.setattr(training_step, "train_step", counted)
    config = tiny(stop_at_divergence=True, on_spike=on_spike)
    assert train(config, tmp_path / "run").step == 8
    assert [r["step"] for r in figures(tmp_path / "run") if "spike" in r] == [5]
    monkeypatch.setattr(guard, "MOST", 2)
    broken |= {5, 6}
    assert train(config, tmp_path / "other").step == 7
    assert figures(tmp_path / "other")[-1]["diverged"] == 7


def test_a_run_that_does_not_diverge_ends_as_ever(tiny, tmp_path):
    result = train(tiny(stop_at_divergence=True), tmp_path / "run")
    assert result.step == 8
    assert math.isfinite(result.val_loss)
    assert "diverged" not in figures(tmp_path / "run")[-1]
