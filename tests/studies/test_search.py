"""What may be chosen from (lists, ranges, grids) and the points that Optuna draws from it."""

import math

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.plan import Planned
from unitsphere.studies.core.points import Trial, edges
from unitsphere.studies.core.space import (
    SEEDS,
    Choices,
    Range,
    Told,
    count_points,
    grid_points,
    next_coordinates,
    next_points,
    own_point,
    random_points,
    space_of,
)
from unitsphere.studies.trials import is_hopeless
from unitsphere.training.recipes import load_recipe

SPACE = {
    "lr": Range(1e-3, 1e-1, log=True),
    "n": Range(1, 4, whole=True),
    "kind": Choices(("a", True, 0.5)),
}


def test_points_lie_in_the_space_and_follow_from_the_trials_alone():
    points = next_points(SPACE, [], 5, seed=0, asked=0)
    assert points == next_points(SPACE, [], 5, seed=0, asked=0)
    assert len({str(point) for point in points}) == 5
    for point in points:
        assert list(point) == list(SPACE)
        assert 1e-3 <= point["lr"] <= 1e-1
        assert point["n"] in (1, 2, 3, 4)
        assert point["kind"] in ("a", True, 0.5)
    told = [Told(point, 1.0) for point in points]
    assert next_points(SPACE, told, 1, seed=0, asked=5)[0] not in points


def test_every_seed_draws_points():
    drawn = [
        points
        for seed in (0, 123_456, SEEDS - 1)
        for points in (random_points(SPACE, 1, seed), next_points(SPACE, [], 1, seed, asked=7))
    ]
    assert len({str(points) for points in drawn}) == 6


def test_points_that_all_failed_are_not_asked_for_again():
    assert next_points(SPACE, [], 2, seed=0, asked=2) != next_points(SPACE, [], 2, seed=0, asked=0)


def test_the_search_goes_where_losses_are_low():
    told: list[Told] = []
    for _ in range(8):
        for point in next_points({"lr": SPACE["lr"]}, told, 4, seed=1, asked=len(told)):
            told.append(Told(point, abs(float(point["lr"]) - 0.02)))
    last = [abs(float(trial.params["lr"]) - 0.02) for trial in told[-12:]]
    first = [abs(float(trial.params["lr"]) - 0.02) for trial in told[:12]]
    assert sorted(last)[6] < sorted(first)[6] / 2


def test_diverged_and_stopped_trials_keep_it_away():
    lr = {"lr": SPACE["lr"]}
    good = [Told({"lr": 2e-3 + i * 1e-4}, 1.0 + i / 100) for i in range(8)]
    bad = [Told({"lr": 5e-2 + i * 1e-3}, float("inf")) for i in range(8)]
    bad += [Told({"lr": 3e-2 + i * 1e-3}, 9.0, stopped=2) for i in range(8)]
    assert max(point["lr"] for point in next_points(lr, good + bad, 6, seed=2, asked=24)) < 2e-2


def test_a_random_draw_lies_in_its_range_and_is_drawn_again_alike():
    for low, ratio, log in ((1e-6, 1.001, True), (3.0, 40.0, False), (1e-3, 1e4, True)):
        space = {"lr": Range(low, low * ratio, log=log), "n": Range(2, 5, log=log, whole=True)}
        points = random_points(space, 60, seed=3)
        for point in points:
            assert low <= point["lr"] <= low * ratio
            assert point["n"] in (2, 3, 4, 5)
            assert isinstance(point["n"], int)
        assert points[:20] == random_points(space, 20, seed=3)
        assert points[0] != random_points(space, 1, seed=4)[0]


def test_random_draws_spread_over_the_range():
    space = {"lr": Range(1e-3, 1e-1, log=True), "kind": Choices(("a", "b"))}
    space["n"] = Range(2, 4, whole=True)
    points = random_points(space, 400, seed=0)
    below = sum(point["lr"] < 1e-2 for point in points)
    assert 150 < below < 250
    assert 150 < sum(point["kind"] == "a" for point in points) < 250
    assert {point["n"] for point in points} == {2, 3, 4}
    assert all(point["lr"] == float(f"{point['lr']:.4g}") for point in points)


def test_a_run_is_hopeless_if_its_best_is_worse_than_the_median_of_those_that_came_as_far():
    rivals = [[3.0, 2.0 + i / 10, 1.5] for i in range(4)]  # the median of the second is 2.15
    assert is_hopeless([3.5, 2.16], rivals, 4)
    assert not is_hopeless([3.5, 2.14], rivals, 4)
    assert not is_hopeless([2.1, 9.0], rivals, 4)
    assert not is_hopeless([3.5, 2.16], [*rivals[:3], rivals[3][:1], []], 4)


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


def test_the_ends_of_a_grid_are_those_of_its_range_and_are_known_as_edges():
    space = {"lr": Range(0.00123456, 0.0265333, log=True, points=4)}
    low, *_, high = (point["lr"] for point in grid_points(space))
    assert (low, high) == (0.00123456, 0.0265333)  # of more than four digits
    assert edges(space, {"lr": low}, []) == edges(space, {"lr": high}, []) == ["lr"]


def test_the_ends_of_what_was_drawn_from_a_range_are_edges(tmp_path):
    def trial(number, lr, status="finished"):
        recipe = "quickstart/gpt-plus"
        run = Planned("run", recipe, {}, tmp_path, load_recipe(recipe))
        return Trial(number, {"lr": lr}, [Record(run, status, loss=1.0)])

    space = {"lr": Range(1e-3, 1e-1, log=True)}
    trials = [trial(0, 2e-3), trial(1, 1e-2), trial(2, 9e-2)]
    assert [edges(space, t.params, trials) for t in trials] == [["lr"], [], ["lr"]]
    assert edges(space, {"lr": 9e-2}, [*trials, trial(3, 9.5e-2, "failed")]) == ["lr"]
    assert edges(space, {"lr": 9e-2}, [*trials, trial(3, 9.5e-2, "diverged")]) == []


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
        ({"low": "a", "high": 1.0}, "must be a number"),
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


GRID = {
    "lr": Choices((4.0, 1.0, 2.0, 8.0)),
    "decay": Range(0.0, 1.0, points=3),
    "kind": Choices(("a", "b", "c")),
}


def bowl(point):
    """A loss that is lowest at lr 4, decay 0.5, kind b."""
    kind = 0.0 if point["kind"] == "b" else 1.0
    return abs(point["lr"] - 4) + abs(point["decay"] - 0.5) + kind


def searched(start, trials, loss=bowl):
    tried = []
    while len(tried) < trials and (points := next_coordinates(GRID, start, tried)):
        tried += [(point, loss(point)) for point in points]
    return tried


def test_a_coordinate_search_follows_each_key_to_its_best():
    start = {"lr": 1.0, "decay": 0.0, "kind": "c"}
    tried = searched(start, 12)
    assert tried[0][0] == start
    assert {"lr": 4.0, "decay": 0.5, "kind": "b"} in [point for point, _ in tried]


def test_a_coordinate_search_tries_no_point_twice_and_ends_with_its_space():
    tried = [point for point, _ in searched({"lr": 8.0, "decay": 1.0, "kind": "a"}, 99)]
    assert len(tried) == len({str(point) for point in tried}) == 4 * 3 * 3


def test_a_coordinate_search_leaves_a_region_that_diverges():
    tried = searched(
        {"lr": 8.0, "decay": 1.0, "kind": "a"},
        12,
        lambda point: math.inf if point["lr"] > 2 else bowl(point),
    )
    assert min(loss for _, loss in tried) <= 3.0


def test_it_starts_from_the_values_nearest_to_the_arm_s_own():
    own = {"lr": 3.2, "decay": 0.3, "kind": "b"}
    assert own_point(GRID, own) == {"lr": 4.0, "decay": 0.5, "kind": "b"}
    assert own_point(GRID, {"lr": 2, "decay": None, "kind": 7}) == {
        "lr": 2.0,
        "decay": 0.0,
        "kind": "a",
    }
