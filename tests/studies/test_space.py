"""What a sweep chooses from: lists and ranges, grids and draws."""

import math

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.core.space import (
    Choices,
    Range,
    count_points,
    grid_points,
    space_of,
)


def test_lists_and_ranges_under_dotted_or_nested_keys():
    space = space_of(
        {
            "optim.lr": {"low": 1e-3, "high": 1e-1, "log": True, "points": 3},
            "model": {"alpha": {"init": [0.05, 0.25]}, "n_layers": {"low": 2, "high": 4}},
        }
    )
    assert space == {
        "optim.lr": Range(1e-3, 1e-1, log=True, points=3),
        "model.alpha.init": Choices((0.05, 0.25)),
        "model.n_layers": Range(2, 4, whole=True),
    }


def test_a_grid_has_every_combination_and_its_ends():
    space = space_of(
        {
            "lr": {"low": 1e-3, "high": 1e-1, "log": True, "points": 3},
            "n": {"low": 1, "high": 3, "points": 5},
            "norm": [True, "rms"],
        }
    )
    points = grid_points(space)
    assert len(points) == 3 * 3 * 2
    assert [p["lr"] for p in points[::6]] == [0.001, 0.01, 0.1]
    assert points[0] == {"lr": 0.001, "n": 1, "norm": True}
    assert points[1]["norm"] == "rms"
    assert [p["n"] for p in points[:6:2]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (3, "must be a list of values, or a range"),
        ([], "must list different numbers"),
        ([1, 1], "must list different numbers"),
        ([[1]], "must list different numbers"),
        ({"low": 1.0}, "'search.key' has no 'high'"),
        ({"low": 2.0, "high": 1.0}, "'low' below its 'high'"),
        ({"low": 0.0, "high": math.inf}, "'low' below its 'high'"),
        ({"low": 0.0, "high": 1.0, "log": True}, "must be above 0 with log = true"),
        ({"low": 0.0, "high": 1.0, "points": 1}, "must be from 2 to 10000"),
        ({"low": 0.0, "high": 1.0, "steps": 3}, "unknown key 'search.key.steps'"),
        ({"low": "a", "high": 1.0}, "must be float"),
    ],
)
def test_mistakes_are_one_line(entry, line):
    with pytest.raises(UserError, match=line.replace("'", ".")):
        space_of({"key": entry})


def test_a_grid_needs_points():
    with pytest.raises(UserError, match=r"a grid needs 'search\.lr\.points'"):
        grid_points({"lr": Range(0.0, 1.0)})


@pytest.mark.parametrize("points", [1, 10_001, 10**10])
def test_a_range_has_as_many_points_as_a_sweep_may_have(points):
    with pytest.raises(UserError, match=r"'search\.lr\.points' must be from 2 to 10000"):
        space_of({"lr": {"low": 1e-3, "high": 1.0, "points": points}})


def test_points_are_counted_without_making_them():
    wide = {"low": 0.0, "high": 1.0, "points": 1000}
    assert count_points(space_of({"a": wide, "b": wide, "c": wide, "d": wide})) == 10**12
