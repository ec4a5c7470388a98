"""A toy comparison end to end, in this process: what it leaves, reuses and refuses."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.errors import Preempted, UserError
from unitsphere.report.registry import page_of
from unitsphere.studies.compare import KIND, CompareStudy
from unitsphere.studies.core import execute as execute_module
from unitsphere.studies.core import progress
from unitsphere.studies.core.kind import run_study
from unitsphere.studies.core.plan import arm_config, rate_keys, run_keys
from unitsphere.studies.core.spec import ArmSpec, Tune, load_study

BUDGETS = [384, 768]


def compare(study, out, executor):
    return run_study(KIND, study, out, executor).document


def failed(found):
    return any(flag["name"] == "failed" for flag in found["flags"])


def toy(folder: Path, **changes) -> CompareStudy:
    """Two tiny arms, two budgets, two seeds."""
    gpt, ngpt, _ = recipes(folder)
    arms = {"gpt": ArmSpec(gpt), "ngpt": ArmSpec(ngpt, {"model.alpha.init": 0.5}, lr=3e-2)}
    settings = {
        "arms": arms,
        "budgets": BUDGETS,
        "seeds": [0, 1],
        "set": {"train.save_every": 2},
        "allow": ["tied-rates"],
        "tune": Tune(points=2, growths=1, seeds=[7], fraction=0.3),
    }
    return CompareStudy(**(settings | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study: folder of its recipes, its own folder, its figures, the runs it made."""
    folder = tmp_path_factory.mktemp("compare")
    executor = InProcess()
    found = compare(toy(folder), folder / "out", executor)
    return folder, folder / "out", found, executor.ran


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of its folder to go on in; the recipes stay where they are."""
    shutil.copytree(finished[1], tmp_path / "out")
    return finished[0], tmp_path / "out", finished[2]


def test_every_arm_budget_and_seed_is_a_run_of_its_own_annealed_over_it(finished):
    _, out, found, ran = finished
    for arm in ("gpt", "ngpt"):
        for tokens, budget in zip(BUDGETS, found["arms"][arm]["budgets"], strict=True):
            assert budget["tokens"] == tokens
            assert [seed["seed"] for seed in budget["seeds"]] == [0, 1]
            for seed in budget["seeds"]:
                config = read_json(Path(seed["run"]) / "config.json")
                assert config["train"]["steps"] * config["train"]["batch_tokens"] == tokens
                assert config["train"]["seed"] == seed["seed"]
                assert config["optim"]["lr"] == budget["lr"]
                assert Path(seed["run"]).is_relative_to(out / "runs" / arm / str(tokens))
            losses = [seed["loss"] for seed in budget["seeds"]]
            assert budget["loss"] == pytest.approx(sum(losses) / 2)
    # Two arms at two budgets: two rates each, perhaps a third, then two seeds.
    assert 16 <= len(ran) <= 20
    assert len(set(ran)) == len(ran)


def test_arms_are_trained_in_turn_seed_by_seed(finished):
    final = [name.split() for name in finished[3] if not name.endswith("tune")]
    assert [(words[0], words[-1]) for words in final] == 2 * [
        *(("gpt", "#0"), ("ngpt", "#0")),
        *(("gpt", "#1"), ("ngpt", "#1")),
    ]


def test_rates_are_tuned_on_documents_that_are_not_reported(finished):
    folder, out, found, _ = finished
    tuning = list((out / "runs" / "gpt" / "tune-384").glob("lr-*-seed-7"))
    source = read_json(tuning[0] / "config.json")["data"]["source"]
    assert Path(source).parent == folder / "cache"
    assert "tuning" in Path(source).name
    for arm in found["arms"].values():
        for budget in arm["budgets"]:
            rates = {rate["lr"]: rate["loss"] for rate in budget["tuned"]["rates"]}
            assert budget["lr"] == min(rates, key=rates.get)
    assert 3e-2 in [rate["lr"] for rate in found["arms"]["ngpt"]["budgets"][0]["tuned"]["rates"]]
    assert found["arms"]["ngpt"]["lr"] == found["arms"]["ngpt"]["budgets"][-1]["lr"]


def test_the_document_has_the_contract_s_form_and_is_written(finished):
    _, out, found, _ = finished
    assert read_json(out / "results.json") == json.loads(json.dumps(found))
    assert set(found["arms"]["gpt"]) >= {"lr", "budgets"}
    assert set(found["arms"]["gpt"]["budgets"][0]) >= {"tokens", "loss", "bits_per_byte", "seeds"}
    (row,) = found["speedups"]
    assert (row["arm"], row["baseline"]) == ("ngpt", "gpt")
    for key in ("tokens", "steps", "flops", "time"):
        assert set(row[key]) >= {"median", "low", "high"}
        assert row[key]["median"] is not None or row[key]["reason"]
    assert [row["tokens"] for row in found["differences"]] == BUDGETS
    assert "paired t-test over 2 seeds" in found["differences"][0]["statement"]
    assert found["provenance"]["machine"]
    assert (out / "loss.png").read_bytes()[:4] == b"\x89PNG"
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "| ngpt | 768 |" in page
    assert found["differences"][1]["statement"] in page


def test_equal_tokens_and_equal_order_for_a_seed(finished):
    """Both arms' runs of a seed read the same batches."""
    from unitsphere.training.corpus import open_corpus
    from unitsphere.training.recipes import load_recipe

    _, _, found, _ = finished
    runs = [Path(found["arms"][a]["budgets"][1]["seeds"][1]["run"]) for a in ("gpt", "ngpt")]
    first, second = (open_corpus(load_recipe(run / "config.json")).batches for run in runs)
    for step in (0, 11):
        assert (first.batch(step).inputs == second.batch(step).inputs).all()


def test_the_record_is_the_study(finished):
    folder, out, _, _ = finished
    assert load_study(CompareStudy, out / "study.toml") == toy(folder)


def test_the_same_study_trains_nothing_again(copy):
    folder, out, before = copy
    executor = InProcess()
    found = compare(toy(folder), out, executor)
    assert executor.ran == []
    assert found["differences"] == before["differences"]


def digest(run: Path) -> str:
    files = sorted(p for p in run.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def test_an_interrupted_study_continues_and_leaves_finished_runs_alone(finished, tmp_path):
    folder, _, before, _ = finished
    out, study = tmp_path / "out", toy(folder, budgets=BUDGETS[:1])
    first, second = InProcess(stop=2), InProcess()
    with pytest.raises(Preempted, match="the same command resumes"):
        compare(study, out, first)
    kept = {run: digest(run) for run in out.glob("runs/*/*/lr-*-seed-*") if run.is_dir()}
    assert len(kept) == 2
    found = compare(study, out, second)
    assert {run: digest(run) for run in kept} == kept
    assert set(first.ran).isdisjoint(second.ran)
    for arm in ("gpt", "ngpt"):
        one, two = (each["arms"][arm]["budgets"][0] for each in (found, before))
        assert (one["loss"], one["lr"]) == (two["loss"], two["lr"])


def test_one_failed_arm_ends_no_other_and_is_shown(finished, tmp_path):
    folder, _, before, _ = finished
    executor = InProcess(broken=["ngpt 768"])
    study = toy(folder, tune=Tune(points=1), seeds=[0])
    found = compare(study, tmp_path / "out", executor)
    assert failed(found)
    assert found["arms"]["gpt"]["budgets"][1]["loss"] > 0
    budget = found["arms"]["ngpt"]["budgets"][1]
    assert budget["loss"] is None
    assert [seed["status"] for seed in budget["seeds"]] == ["failed"]
    assert budget["seeds"][0]["error"] == "the disk is full"
    (row,) = found["speedups"]
    assert row["tokens"]["median"] is None
    assert "no seed of which both finished" in row["tokens"]["reason"]
    names = [flag["name"] for flag in found["flags"]]
    assert names.count("failed") == 1
    assert "untuned" in names
    assert not failed(before)


def test_divergence_is_a_result(finished, tmp_path):
    folder, _, _, _ = finished
    arms = toy(folder).arms | {"ngpt": dataclasses.replace(toy(folder).arms["gpt"], lr=1e30)}
    study = toy(folder, arms=arms, tune=Tune(points=1), seeds=[0], budgets=BUDGETS[:1])
    found = compare(study, tmp_path / "out", InProcess())
    assert not failed(found)
    assert found["arms"]["ngpt"]["budgets"][0]["seeds"][0]["status"] == "diverged"
    assert {"diverged", "one-seed"} <= {flag["name"] for flag in found["flags"]}


def test_what_is_allowed_may_change_when_a_study_continues(copy):
    folder, out, found = copy
    again = compare(toy(folder, allow=["context", "tied-rates"]), out, InProcess(stop=0))
    assert again["differences"] == found["differences"]


def test_another_study_is_refused_in_the_same_folder(copy):
    folder, out, _ = copy
    with pytest.raises(UserError, match=r"another study \(seeds: \[0, 1\] -> \[0, 1, 2\]\)"):
        compare(toy(folder, seeds=[0, 1, 2]), out, InProcess())


def test_a_finished_study_is_measured_against_another_baseline(copy):
    folder, out, before = copy
    executor = InProcess()
    found = compare(toy(folder, baseline="ngpt"), out, executor)
    assert executor.ran == []
    assert found["differences"][0]["loss"]["mean"] == -before["differences"][0]["loss"]["mean"]
    assert (found["speedups"][0]["arm"], found["speedups"][0]["baseline"]) == ("gpt", "ngpt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "gtp"}, "'baseline' is not an arm: 'gtp'"),
        ({"budgets": []}, "'budgets' must be"),
        ({"arms": {"gpt": ArmSpec("x")}}, "at least two arms"),
    ],
)
def test_mistakes_in_a_study(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        toy(tmp_path, **changes)


def test_a_key_that_one_arm_lacks_names_the_arm(tmp_path):
    study = toy(tmp_path, set={"model.alpha.init": 0.5})
    with pytest.raises(UserError, match=r"^arm gpt: unknown key 'model\.alpha'"):
        compare(study, tmp_path / "out", InProcess())


def test_tuning_runs_that_fail_are_shown(finished, tmp_path):
    folder, *_ = finished
    study = toy(folder, budgets=BUDGETS[:1], seeds=[0], tune=Tune(points=2, growths=0))
    found = compare(study, tmp_path / "out", InProcess(broken=["ngpt"]))
    assert failed(found)
    assert found["arms"]["ngpt"]["lr"] is None
    assert found["arms"]["ngpt"]["budgets"][0]["seeds"] == []
    said = [flag["text"] for flag in found["flags"] if flag["name"] in ("no-rate", "failed")]
    assert said[0] == "ngpt at 384 tokens: no rate of its grid trained"
    assert said[1].endswith("tune: the disk is full")


def test_two_budgets_of_the_same_steps_are_refused(tmp_path):
    with pytest.raises(UserError, match="two of the budgets have the same number of steps of 64"):
        compare(toy(tmp_path, budgets=[640, 641]), tmp_path / "out", InProcess())


def test_two_budgets_of_the_same_steps_in_any_arm_are_refused(tmp_path):
    arms = toy(tmp_path).arms
    name = list(arms)[-1]
    wide = ArmSpec(arms[name].recipe, {**arms[name].set, "train.batch_tokens": 6400})
    study = toy(tmp_path, budgets=[5000, 6400], arms={**arms, name: wide})
    study = dataclasses.replace(study, allow=["batch", "tied-rates"])
    with pytest.raises(UserError, match="the same number of steps of 6400 tokens"):
        compare(study, tmp_path / "out", InProcess())


def test_a_tuned_rate_takes_adam_s_own_with_it(tmp_path):
    arms = toy(tmp_path).arms
    muon = {"optim.name": "muon", "optim.adam_lr": 0.03}
    study = toy(tmp_path, arms={**arms, "muon": ArmSpec(arms["gpt"].recipe, muon, lr=0.02)})
    assert run_keys(study, "muon", 640, 0.02, 0)["optim.lr"] == 0.02
    assert "optim.adam_lr" not in rate_keys(arm_config(study, "muon"), 0.02)
    assert run_keys(study, "muon", 640, 0.04, 0)["optim.adam_lr"] == pytest.approx(0.06)


def test_the_time_left_counts_the_final_runs_while_rates_are_tuned(finished, tmp_path, monkeypatch):
    folder, *_ = finished
    seen = []

    def display(workers, stream, later=()):
        seen.append([(job.name, job.arm, job.steps) for job in later])
        return progress.display(workers, stream, later)

    monkeypatch.setattr(execute_module, "display", display)
    study = toy(folder, seeds=[0], tune=Tune(points=2, growths=0))
    compare(study, tmp_path / "out", InProcess(broken=["#0"]))  # final runs fail: that is quick
    names = {f"{arm} {tokens}" for arm in study.arms for tokens in BUDGETS}
    assert {name for name, *_ in seen[0]} == names
    assert {steps for *_, steps in seen[0]} == {tokens // 64 for tokens in BUDGETS}
    assert seen[1] == []


def test_the_report_s_page_has_the_answer_curves_and_settings(finished):
    _, out, found, _ = finished
    page = page_of(out)
    assert page.kind == "Comparison"
    assert page.answer.startswith(("ngpt needs ", "ngpt against gpt ", "ngpt reaches gpt's loss "))
    assert [s.name for s in page.sections][:3] == ["results", "rates", "curves"]
    figures = {figure.name: figure for figure in page.figures()}
    assert [line.name for line in figures["loss"].series] == [
        "gpt #0",
        "gpt #1",
        "ngpt #0",
        "ngpt #1",
    ]
    means = [budget["loss"] for budget in found["arms"]["ngpt"]["budgets"]]
    line = next(each for each in figures["loss-by-budget"].series if each.name == "ngpt")
    assert line.y == pytest.approx(means, rel=1e-5)
    assert page.unfinished == ""
