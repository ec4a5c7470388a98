"""Optuna as a source of points, rebuilt from the trials each time."""

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.core import search as optuna_search
from unitsphere.studies.core.search import Told, ask
from unitsphere.studies.core.space import Choices, Range

SPACE = {
    "lr": Range(1e-3, 1e-1, log=True),
    "n": Range(1, 4, whole=True),
    "kind": Choices(("a", True, 0.5)),
}


@pytest.fixture(autouse=True)
def _needs_optuna():
    pytest.importorskip("optuna")


def test_points_lie_in_the_space_and_follow_from_the_trials_alone():
    points = ask(SPACE, [], 5, seed=0, asked=0)
    assert points == ask(SPACE, [], 5, seed=0, asked=0)
    assert len({str(point) for point in points}) == 5
    for point in points:
        assert list(point) == list(SPACE)
        assert 1e-3 <= point["lr"] <= 1e-1
        assert point["n"] in (1, 2, 3, 4)
        assert point["kind"] in ("a", True, 0.5)
    told = [Told(point, 1.0) for point in points]
    assert ask(SPACE, told, 1, seed=0, asked=5)[0] not in points


def test_points_that_all_failed_are_not_asked_for_again():
    assert ask(SPACE, [], 2, seed=0, asked=2) != ask(SPACE, [], 2, seed=0, asked=0)


def test_the_search_goes_where_losses_are_low():
    told: list[Told] = []
    for _ in range(8):
        for point in ask({"lr": SPACE["lr"]}, told, 4, seed=1, asked=len(told)):
            told.append(Told(point, abs(float(point["lr"]) - 0.02)))
    last = [abs(float(trial.params["lr"]) - 0.02) for trial in told[-12:]]
    first = [abs(float(trial.params["lr"]) - 0.02) for trial in told[:12]]
    assert sorted(last)[6] < sorted(first)[6] / 2


def test_diverged_and_stopped_trials_keep_it_away():
    lr = {"lr": SPACE["lr"]}
    good = [Told({"lr": 2e-3 + i * 1e-4}, 1.0 + i / 100) for i in range(8)]
    bad = [Told({"lr": 5e-2 + i * 1e-3}, float("inf")) for i in range(8)]
    bad += [Told({"lr": 3e-2 + i * 1e-3}, 9.0, stopped=2) for i in range(8)]
    assert max(point["lr"] for point in ask(lr, good + bad, 6, seed=2, asked=24)) < 2e-2


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(optuna_search.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs Optuna: pip install 'unitsphere\[sweep\]'"):
        ask(SPACE, [], 1, seed=0, asked=0)
