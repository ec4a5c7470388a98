"""What a sweep chooses from: lists and ranges, grids and draws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.errors import UserError
from unitsphere.studies.core.space import (
    Choices,
    Range,
    count_points,
    grid_points,
    random_point,
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


@given(
    st.floats(1e-6, 1e3),
    st.floats(1.001, 1e4),
    st.booleans(),
    st.integers(0, 2**31),
    st.integers(0, 1000),
)
def test_a_draw_lies_in_its_range_and_is_drawn_again_alike(low, ratio, log, seed, number):
    space = {"lr": Range(low, low * ratio, log=log), "n": Range(2, 5, log=log, whole=True)}
    point = random_point(space, seed, number)
    assert low <= point["lr"] <= low * ratio
    assert point["n"] in (2, 3, 4, 5)
    assert isinstance(point["n"], int)
    assert point == random_point(space, seed, number)


def test_draws_spread_over_the_range():
    space = {"lr": Range(1e-3, 1e-1, log=True), "kind": Choices(("a", "b"))}
    space["n"] = Range(2, 4, whole=True)
    points = [random_point(space, 0, number) for number in range(400)]
    below = sum(point["lr"] < 1e-2 for point in points)
    assert 150 < below < 250
    assert 150 < sum(point["kind"] == "a" for point in points) < 250
    assert {point["n"] for point in points} == {2, 3, 4}
    assert all(point["lr"] == float(f"{point['lr']:.4g}") for point in points)
    assert random_point(space, 1, 0) != points[0]


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
