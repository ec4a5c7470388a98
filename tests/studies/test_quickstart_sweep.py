"""The sweep behind the quickstart's rates: its study, its grids, and what it writes."""

import json

import pytest
from scripts import load_script
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.studies.core.spec import ArmSpec


@pytest.fixture(scope="module")
def sweep():
    return load_script("quickstart_sweep")


def test_arms_are_recipes_with_changes_that_lie_apart(sweep):
    argv = ["--arms", "ngpt", "angpt", "--set", "ngpt:model.alpha.init=0.05"]
    study = sweep.study_of(sweep.arguments([*argv, "--set", "angpt:optim.lr=1e-2"]))
    first, second = study.arms
    assert first.startswith("ngpt-")
    assert study.arms[first] == ArmSpec("quickstart/ngpt", {"model.alpha.init": 0.05})
    assert study.arms[second] == ArmSpec("quickstart/angpt", {}, 1e-2)
    assert second == "angpt"
    assert study.tune.seeds == [0, 1, 2]
    assert study.tune.points == 5


def test_it_sweeps_writes_all_it_found_and_trains_nothing_twice(sweep, tmp_path, monkeypatch):
    tiny = recipes(tmp_path)[1]
    study = sweep.study_of

    def small(args):
        found = study(args)
        arms = {name: ArmSpec(tiny, arm.set, arm.lr) for name, arm in found.arms.items()}
        return sweep.Study(arms=arms, tune=sweep.Tune(4.0, args.points, 1, [0, 1], fraction=0.3))

    executor = InProcess()
    monkeypatch.setattr(sweep, "study_of", small)
    monkeypatch.setattr(sweep, "Local", lambda workers: executor)
    monkeypatch.setattr(sweep.Search, "at_edge", lambda self: False)
    out, results = tmp_path / "runs", tmp_path / "results"
    argv = ["--arms", "ngpt", "--points", "2", "--seeds", "2", "--set", "ngpt:optim.lr=2e-2"]
    argv += ["--out", str(out), "--results", str(results)]
    assert sweep.main(argv) == 0
    assert 4 <= len(executor.ran) <= 6
    found = read_json(results.with_suffix(".json"))
    (arm,) = found["arms"]
    assert (found["steps"], found["tokens"], found["seeds"]) == (6, 384, [0, 1])
    means = {rate["lr"]: rate["mean"] for rate in arm["rates"]}
    assert arm["best"] == min(means, key=means.get)
    for rate in arm["rates"]:
        values = rate["bits_per_byte"].values()
        assert rate["mean"] == pytest.approx(sum(values) / 2)
        assert rate["standard_error"] > 0
    page = results.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| **{arm['best']:g}** | {means[arm['best']]:.4f} ± " in page
    before = len(executor.ran)
    assert sweep.main(argv) == 0
    assert len(executor.ran) == before


def test_a_best_rate_that_stays_at_the_edge_is_an_error(sweep, tmp_path, monkeypatch):
    study = sweep.Study(arms={"ngpt": ArmSpec(recipes(tmp_path)[1])})
    monkeypatch.setattr(sweep, "search", lambda *_: None)
    with pytest.raises(UserError, match="still at its grid's edge"):
        sweep.sweep(study, tmp_path, 6, 1)


def test_a_diverged_rate_has_no_mean(sweep, tmp_path):
    record = sweep.Record(type("Run", (), {"seed": 0}), "diverged")
    assert sweep.rate_figures(1.0, [record])["mean"] is None
    assert json.dumps(sweep.rate_figures(1.0, [record])["bits_per_byte"]) == '{"0": null}'


def test_settings_are_read_as_numbers_where_they_are(sweep):
    settings = ["ngpt:model.alpha.init=0.05", "ngpt:schedule.kind=cosine", "angpt:optim.lr=1e-2"]
    expected = {"model.alpha.init": 0.05, "schedule.kind": "cosine"}
    assert sweep.overrides_of("ngpt", settings) == expected
    with pytest.raises(UserError, match="ARM:KEY=VALUE"):
        sweep.overrides_of("ngpt", ["gpt:optim.lr=1"])
