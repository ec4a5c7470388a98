"""Tuning of several keys by arm: a tiny comparison, what it tries, reports and refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.report.registry import page_of
from unitsphere.report.render.text import markdown
from unitsphere.studies.compare import KIND, CompareStudy, checked
from unitsphere.studies.core.fairness import rate_flags
from unitsphere.studies.core.kind import run_study, tuning
from unitsphere.studies.core.plan import arm_config, transferred
from unitsphere.studies.core.points import PointSearch, carried, keys_of
from unitsphere.studies.core.spec import ArmSpec, Tune, load_study, study_from
from unitsphere.studies.core.tune import Point, Tuned

KEYS = {
    "gpt": {"optim.lr": [5e-3, 1e-2, 2e-2], "optim.rates.*": [1.0, 2.0]},
    "ngpt": {"optim.lr": [1e-2, 2e-2], "schedule.warmup": [0.0]},
}


def toy(folder: Path, **changes) -> CompareStudy:
    """Two tiny arms, of which one has more points than are tried, the other fewer."""
    gpt, ngpt, _ = recipes(folder)
    settings = {
        "arms": {"gpt": ArmSpec(gpt), "ngpt": ArmSpec(ngpt)},
        "budgets": [192, 384],
        "seeds": [0],
        "allow": ["tied-rates"],
        "tune": Tune(keys=KEYS, trials=4, seeds=[7], budgets=[192], fraction=0.3),
    }
    return CompareStudy(**(settings | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study: its folder, its own, its figures, the runs it made."""
    folder = tmp_path_factory.mktemp("points")
    executor = InProcess()
    found = run_study(KIND, toy(folder), folder / "out", executor).document
    return folder, folder / "out", found, executor.ran


def test_each_arm_gets_its_points_and_the_best_is_reported(finished):
    _, out, found, ran = finished
    assert len([name for name in ran if name.endswith("tune")]) == 4 + 2
    assert found["tuning"]["trials"] == 4
    for arm, tried in (("gpt", 4), ("ngpt", 2)):
        for budget in found["arms"][arm]["budgets"]:
            tuned = budget["tuned"]
            assert (tuned["tokens"], tuned["tried"], len(tuned["trials"])) == (192, tried, tried)
            losses = {tuple(t["params"].values()): t["loss"] for t in tuned["trials"]}
            best = tuple(tuned["best"]["params"].values())
            assert tuned["best"]["loss"] == losses[best] == min(losses.values())
            for near in tuned["neighbours"]:
                point = {**tuned["best"]["params"], near["key"]: near["value"]}
                assert near["loss"] == losses.get(tuple(point.values()))
            config = read_json(Path(budget["seeds"][0]["run"]) / "config.json")
            assert config["optim"]["lr"] == budget["lr"] == best[0]
            if arm == "gpt":
                assert set(config["optim"]["rates"].values()) == {best[1]}
    first = found["arms"]["gpt"]["budgets"][0]["tuned"]["trials"][0]
    assert first["params"] == {"optim.lr": 1e-2, "optim.rates.*": 1.0}
    sources = {
        read_json(config)["data"]["source"] for config in out.glob("runs/*/tune-192/*/config.json")
    }
    assert all("tuning" in Path(source).name for source in sources)


@pytest.mark.parametrize(("method", "runs"), [("coordinate", [4, 2]), ("optuna", [4, 4])])
def test_a_dry_run_counts_the_points_that_there_are(tmp_path, method, runs):
    """A grid of two points is over after them; Optuna is asked for all of tune.trials."""
    study = toy(tmp_path)
    study = replace(study, tune=replace(study.tune, method=method, seeds=[7, 8]))
    assert [part.runs for part in tuning(study, [192], study.arms)] == [2 * n for n in runs]


def test_it_flags_fewer_runs_edges_and_borrowed_points(finished):
    flags = {(flag["name"], flag["text"].split(" ")[0]) for flag in finished[2]["flags"]}
    assert ("fewer-runs", "ngpt") in flags
    assert {("borrowed", "gpt"), ("borrowed", "ngpt")} <= flags
    assert not any(name == "untuned" for name, _ in flags)
    edges = [flag["text"] for flag in finished[2]["flags"] if flag["name"] == "edge"]
    best = finished[2]["arms"]["gpt"]["budgets"][0]["tuned"]["best"]
    assert best["at_edge"] == (["optim.lr"] if best["params"]["optim.lr"] != 1e-2 else [])
    assert len(edges) == len(best["at_edge"])


def test_a_best_point_that_is_unfair_loses_no_figures(tmp_path):
    """Each of its values is fair in the arm as it is: only together do they hardly anneal."""
    keys = {"schedule.kind": ["wsd"], "schedule.decay": [0.02]}
    tune = Tune(keys={"gpt": keys, "ngpt": KEYS["ngpt"]}, trials=1, fraction=0.3)
    study = toy(tmp_path, budgets=[384], tune=tune)
    found = run_study(KIND, study, tmp_path / "out", InProcess()).document
    flags = [flag["text"] for flag in found["flags"] if flag["name"] == "un-annealed"]
    assert flags == ["gpt: the rate falls over 0.12 of 6 steps"]


def test_a_key_with_one_value_trained_is_flagged():
    """Three trials that all went to the rate leave the start as it was: it is not tuned."""
    point = {"optim.lr": 2e-2, "model.init_std": 0.02}
    trials = [{"params": {**point, "optim.lr": lr}, "status": "finished"} for lr in (1e-2, 2e-2)]
    near = [
        {"key": "optim.lr", "value": 1e-2, "loss": 3.0},
        {"key": "model.init_std", "value": 0.1, "loss": None},
    ]
    best = Point("p", point, {}, 2.0, [], near)
    flags = list(rate_flags({("gpt", 64): Tuned(2e-2, 64, {}, False, (), trials, best)}))
    assert [(flag.name, flag.text.partition(" is ")[0]) for flag in flags] == [
        ("untried", "gpt at 64 tokens: model.init_std 0.02")
    ]


def test_the_page_says_the_budget_the_best_points_and_their_neighbours(finished):
    page = markdown(page_of(finished[1]))
    assert "Each arm was tuned by 4 points at most" in page
    tuned = finished[2]["arms"]["gpt"]["budgets"][0]["tuned"]
    assert f"{tuned['best']['loss']:.4f}" in page
    near = tuned["neighbours"][0]
    word = "not tried" if near["loss"] is None else f"{near['loss'] - tuned['best']['loss']:+.4f}"
    assert f"its neighbours: lr {near['value']} {word}" in page


def test_it_resumes_and_its_record_is_the_study(finished):
    folder, out, found, _ = finished
    assert load_study(CompareStudy, out / "study.toml") == toy(folder)
    executor = InProcess()
    again = run_study(KIND, toy(folder), out, executor).document
    assert executor.ran == []
    assert again["arms"] == found["arms"]


def test_optuna_s_points_are_kept_and_come_back(finished):
    folder, out, _, _ = finished
    study = toy(folder)
    study = replace(study, tune=replace(study.tune, method="optuna"))
    search = PointSearch(out, study, "gpt", 384)
    points = search.next(turn=2)
    assert len(points) == 2
    assert PointSearch(out, study, "gpt", 384).next(turn=2) == points
    assert len(PointSearch(out, study, "gpt", 384).next(turn=9)) == 2


def test_optuna_draws_between_the_points_of_a_range(tmp_path):
    """`points` are of a grid: what is drawn is not on it, has no neighbours, and has its edges."""
    ranged = {"low": 5e-3, "high": 2e-2, "log": True, "points": 3}
    keys = {arm: {"optim.lr": ranged, "optim.rates.*": [1.0, 2.0]} for arm in KEYS}
    study = toy(tmp_path, budgets=[192])
    study = replace(study, tune=replace(study.tune, keys=keys, trials=2, method="optuna"))
    found = run_study(KIND, study, tmp_path / "out", InProcess()).document
    for arm in KEYS:
        tuned = found["arms"][arm]["budgets"][0]["tuned"]
        assert {near["key"] for near in tuned["neighbours"]} == {"optim.rates.*"}
        assert tuned["best"]["at_edge"] == ["optim.lr"], "it is one of the two that were drawn"


def test_a_tuned_rate_takes_adam_s_own_with_it(tmp_path):
    muon = {"optim.name": "muon", "optim.adam_lr": 0.03}
    study = toy(
        tmp_path, arms={"muon": ArmSpec(recipes(tmp_path)[0], muon, lr=0.02)} | toy(tmp_path).arms
    )
    config = arm_config(study, "muon")
    assert keys_of({"optim.lr": 0.04}, config) == {"optim.lr": 0.04, "optim.adam_lr": 0.06}
    both = {"optim.lr": 0.04, "optim.adam_lr": 0.01}
    assert keys_of(both, config) == both


def test_the_study_that_tunes_the_baselines_is_fair_and_its_spaces_hold_the_recipes():
    study = load_study(CompareStudy, Path(__file__).parents[2] / "benchmarks" / "tune-1m.toml")
    checked(study)
    for arm in study.arms:
        lr = arm_config(study, arm).optim.lr
        assert min(study.tune.keys[arm]["optim.lr"]) <= lr <= max(study.tune.keys[arm]["optim.lr"])


@pytest.mark.parametrize("optimizer", ["muon", "normuon"])
def test_a_law_carries_the_tuned_rates_not_those_of_the_recipes_own_base(optimizer):
    """unitsphere/gpt-plus-muon-1m has a base with rates of its own, quickstart's is by AdamW."""
    own = {"optim.name": optimizer, "optim.adam_lr": 6e-3, "optim.base.adam_lr": 1e-3}
    own |= {f"optim.rates.{group}": 6.0 for group in ("embedding", "head", "scale")}
    for recipe in ("unitsphere/gpt-plus-muon-1m", "quickstart/gpt-plus"):
        tune = Tune(keys={"a": {}, "b": {}}, trials=1, budgets=[491_520], transfer="nu")
        arms = {"a": ArmSpec(recipe, own, 8e-3), "b": ArmSpec("quickstart/ngpt")}
        study = CompareStudy(arms=arms, budgets=[491_520, 8 * 491_520], tune=tune)
        found = transferred(study, "a", 491_520, 8 * 491_520)
        decay = found.pop("optim.weight_decay")  # changes with the length of the run
        assert found == pytest.approx({"optim.lr": 4e-3, "optim.adam_lr": 3e-3})
        assert decay == pytest.approx(0.1 / 4, rel=1e-3)


def test_a_law_carries_the_decay_that_an_arms_own_law_had_where_it_was_tuned():
    base = 983_040  # of unitsphere/gpt-plus-muon-1m, whose decay is 0.1 there
    arms = {"a": ArmSpec("unitsphere/gpt-plus-muon-1m", {"optim.transfer": "nu"}, 3e-3)}
    tune = Tune(keys={"a": {}, "b": {}}, trials=1, budgets=[4 * base], transfer="nu")
    study = CompareStudy(arms=arms | {"b": ArmSpec("quickstart/ngpt")}, budgets=[base], tune=tune)
    for tokens in (8 * base, 32 * base):
        found = transferred(study, "a", 4 * base, tokens)
        whole = found["optim.lr"] * found["optim.weight_decay"] * tokens
        assert whole == pytest.approx(4e-3 * base * 0.1, rel=1e-3)


def test_a_law_carries_rates_to_the_other_budgets(tmp_path):
    study = toy(tmp_path)
    study = replace(study, tune=replace(study.tune, transfer="nu"))
    keys = {"optim.lr": 0.02, "optim.rates.head": 2.0}
    point = Point("point-1", {}, keys, 2.0, (), ())
    found = Tuned(0.02, 192, {}, False, point=point)
    assert carried(study, "gpt", found, 192) is found
    moved = carried(study, "gpt", found, 8 * 192)
    assert moved.lr == pytest.approx(0.01464)  # eight times the steps: 8^(-0.15), four digits
    assert moved.point.keys == {**keys, "optim.lr": moved.lr}
    assert moved.law == "nu"
    (flag,) = rate_flags({("gpt", 8 * 192): moved})
    assert flag.text == "gpt at 1,536 tokens: tuned at 192, its rates carried by the law nu"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gpt": KEYS["gpt"]}, "tune.keys has no 'ngpt'"),
        (KEYS | {"gtp": KEYS["gpt"]}, "'tune.keys.gtp' is not an arm"),
        (KEYS | {"gpt": {}}, "'tune.keys.gpt' names no key"),
        (KEYS | {"gpt": {"train.steps": [3, 6]}}, "'tune.keys.gpt.train.steps' cannot be tuned"),
        (KEYS | {"gpt": {"train.batch_tokens": [64, 128]}}, "unfair: batch"),
        (KEYS | {"gpt": {"schedule.final": [0.0, 0.5]}}, "unfair: un-annealed"),
        (KEYS | {"gpt": {"optim.rate": [1.0]}}, "unknown key 'optim.rate'"),
        (KEYS | {"gpt": {"optim.rate.*": [1.0]}}, "unknown key 'optim.rate.*': nothing is below"),
        (
            KEYS | {"gpt": {"optim.rates.head": [1.0], "optim.rates.*": [2.0]}},
            r"has optim.rates.head in 'optim.rates.head' and in 'optim.rates.\*': keep one",
        ),
        (KEYS | {"gpt": {"optim.lr": {"low": 0.1, "high": 1.0}}}, "tune.keys.gpt.optim.lr.points"),
        (  # each value by itself makes a run, two of them do not: known before anything is trained
            KEYS
            | {
                "ngpt": {
                    "optim.constraint.kind": ["declared", "ball"],
                    "optim.constraint.riemannian": [False, True],
                }
            },
            "riemannian needs weights on spheres",
        ),
    ],
)
def test_mistakes_in_the_keys(tmp_path, keys, message):
    tune = Tune(keys=keys, trials=2)
    with pytest.raises(UserError, match=message):
        checked(toy(tmp_path, tune=tune))


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"keys": KEYS}, "tune.keys needs tune.trials"),
        ({"trials": 3}, "tune.trials and tune.method are for tune.keys"),
        ({"keys": KEYS, "trials": 3, "points": 5}, "are not for tune.keys"),
        ({"keys": KEYS, "trials": 3, "transfer": "nu"}, "set tune.keys and tune.budgets"),
        ({"keys": KEYS, "trials": 3, "budgets": [1], "transfer": "mu"}, "tune.transfer"),
    ],
)
def test_mistakes_in_what_belongs_to_the_keys(tmp_path, tune, message):
    with pytest.raises(UserError, match=message):
        study_from(
            CompareStudy,
            {"arms": {"a": recipes(tmp_path)[0], "b": "x"}, "budgets": [64], "tune": tune},
        )


def test_a_mistake_in_a_range_names_the_arm_s_table(tmp_path):
    span = {"low": 1e-3, "high": 1e-2, "point": 3}
    study = toy(tmp_path, tune=Tune(keys={"gpt": KEYS, "ngpt": {"optim.lr": span}}, trials=2))
    with pytest.raises(UserError, match=r"unknown key 'tune\.keys\.ngpt\.optim\.lr\.point'"):
        checked(study)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model.init_std": 0.1, "optim.rates.head": 2.5}, "start"),
        ({"model.init_std": 0.02}, "tied-rates"),
    ],
)
def test_a_baseline_known_to_be_mis_set_is_refused_unless_allowed_or_tuned(tmp_path, change, name):
    gpt, ngpt, _ = recipes(tmp_path)
    arms = {"gpt": ArmSpec(gpt, {"optim.name": "muon", **change}), "ngpt": ArmSpec(ngpt)}
    study = toy(tmp_path, arms=arms, tune=Tune(points=1), allow=[])
    with pytest.raises(UserError, match=f"unfair: {name}: gpt .*set allow = ..{name}.."):
        checked(study)
    checked(replace(study, allow=[name]))
    keys = {"model.init_std": [0.02, 0.1], "optim.rates.*": [1.0, 2.5]}
    tune = Tune(keys={"gpt": keys, "ngpt": {"optim.lr": [0.01, 0.02]}}, trials=2)
    checked(replace(study, tune=tune))
    once = {"model.init_std": [0.1], "optim.rates.*": [1, 1.0]}
    for given, trials in ((once, 2), (keys, 1)):
        tried = Tune(keys={"gpt": {**keys, **given}, "ngpt": KEYS["ngpt"]}, trials=trials)
        with pytest.raises(UserError, match=f"unfair: .*{name}: gpt"):
            checked(replace(study, tune=tried))
