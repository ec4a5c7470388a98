"""lr-ramp with tiny arms: runs end where they diverge, the median counts, nothing is run twice."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
from studies.inprocess import trained_here
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.cli.lr_ramp import LrRamp, study_of
from unitsphere.cli.parse import parse
from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.report.registry import page_of
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.kind import write_study
from unitsphere.studies.core.plan import Planned, arm_config
from unitsphere.studies.core.spec import load_study, study_from
from unitsphere.studies.ramp import (
    KIND,
    Climb,
    RampStudy,
    climbing,
    document,
    median_rate,
    ramp,
    read_climb,
)
from unitsphere.training.guard import Watch, smoothed
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

STEPS, PEAK, START = 70, 1e4, 1e-2


def test_a_diverged_run_without_records_has_failed(tmp_path):
    run = Planned("arm", "quickstart/ngpt", {}, tmp_path, load_recipe("quickstart/ngpt"))
    climb = read_climb(Record(run, "diverged", error="the loss is NaN"))
    assert (climb.step, climb.losses) == (None, ())
    assert "delete it" in climb.error


def nothing(jobs):
    pytest.fail(f"trained {[job.name for job in jobs]}")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study of two arms and three seeds, trained in this process."""
    folder = tmp_path_factory.mktemp("ramp")
    gpt, ngpt, _ = recipes(folder)
    table = {
        "arms": {"gpt": gpt, "ngpt": ngpt},
        "set": {"train.save_every": 0},
        "steps": STEPS,
        "peak": PEAK,
        "start": START,
    }
    study, out = study_from(RampStudy, table), folder / "out"
    for arm in study.arms:
        for seed in study.seeds:
            planned = climbing(out, study, arm, seed)
            train(planned.config, planned.folder)
    return study, out, ramp(study, out, nothing)


def test_each_run_ends_where_its_own_losses_say(study):
    _, out, climbs = study
    for arm, runs in climbs.items():
        for climb in runs:
            watch, rates = Watch(), {}
            for record in read_metrics(out / "runs" / arm / f"seed-{climb.seed}"):
                rates[record["step"]] = record.get("lr")
                finite = "loss" in record and "grad_norm" in record
                watch = watch.after(record["step"], record["loss"] if finite else math.nan)
            assert climb.step == watch.diverged
            assert climb.step < STEPS
            assert climb.lr == pytest.approx(rates[climb.step])
            ratio = (PEAK / START) ** (1 / (STEPS - 1))
            assert climb.lr == pytest.approx(START * ratio ** (climb.step - 1))


def test_the_document_has_medians_and_ratios_to_the_first_arm(study):
    found = document(study[0], study[2])
    rates = {arm: sorted(s["lr"] for s in a["seeds"]) for arm, a in found["arms"].items()}
    for arm, a in found["arms"].items():
        assert a["lr"] == rates[arm][1]
        assert a["ratio"] == pytest.approx(rates[arm][1] / rates["gpt"][1])
    assert found["divergence"] == {"window": 10, "margin": 1.0, "patience": 20}
    assert found["flags"] == []


def test_the_verb_continues_with_a_study_and_reports_it(study, capsys):
    _, out, climbs = study
    specs = study[0].arms.values()
    words = ["lr-ramp", *(spec.recipe for spec in specs), "--steps", str(STEPS)]
    words += ["--peak", str(PEAK), "--start", str(START), "--out", str(out)]
    words += ["--set", "train.save_every=0"]
    (out / "runs/ngpt/seed-2").rename(out / "aside")
    with trained_here():
        assert main([*words, "--workers", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert "runs to train: 1 (5 finished earlier)" in said.err
    found = json.loads(said.out)
    assert found == {"kind": "lr-ramp", **document(study[0], climbs)}
    assert found == read_json(out / "results.json")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{found['arms']['ngpt']['lr']:.3g}" in said
    assert str(out / "loss.png") in said
    assert (out / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert f"{found['arms']['ngpt']['ratio']:.2f}" in (out / "results.md").read_text()
    assert load_study(RampStudy, out / "study.toml") == study[0]
    assert main([*words, "--peak", "31"]) == 2
    assert "another study (peak: 10000.0 -> 31.0)" in capsys.readouterr().err


def test_a_study_s_own_record_trains_it_again(study, tmp_path, monkeypatch, capsys):
    _, out, _ = study
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text((out / "study.toml").read_text())
    words = ["lr-ramp", "mine.toml", "--json"]
    assert main([*words, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == read_json(out / "results.json")
    assert main([*words, "--steps", "5"]) == 2
    assert "mine.toml says what is trained: leave --steps out" in capsys.readouterr().err
    assert study_of(LrRamp(("mine.toml",)))[1] == Path("runs/mine")
    assert main([*words, "--workers", "3", "--dry_run"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 3


def climb(lr: float | None, error: str | None = None) -> Climb:
    return Climb(0, None if lr is None else 1, lr, error=error)


@pytest.mark.parametrize(
    ("rates", "median"),
    [
        ([0.1, 0.3, 0.2], 0.2),
        ([0.1, None, 0.2], 0.2),
        ([None, None, 0.2], math.inf),
        ([0.1, 0.3], 0.2),
        ([], None),
    ],
)
def test_the_median_counts_a_run_that_did_not_diverge_as_above_the_others(rates, median):
    assert median_rate([climb(lr) for lr in rates]) == pytest.approx(median)
    assert median_rate([*map(climb, rates), climb(None, "no disk")]) == pytest.approx(median)


def test_what_did_not_diverge_or_failed_is_said(study, tmp_path):
    climbs = {"gpt": [climb(None), climb(0.2), climb(None)], "ngpt": [climb(None, "no disk")] * 3}
    found = document(study[0], climbs)
    gpt, ngpt = found["arms"].values()
    assert (gpt["lr"], gpt["reached_peak"], gpt["ratio"]) == (None, True, None)
    assert (ngpt["lr"], ngpt["reached_peak"], ngpt["ratio"]) == (None, False, None)
    said = {(flag["name"], flag["text"]) for flag in found["flags"]}
    assert ("not-diverged", "gpt: 2 of 3 did not diverge up to 10000") in said
    assert ("failed", "ngpt, seed 0: no disk") in said
    write_study(KIND, study[0], climbs, tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert "| gpt | above 10000 | above 10000, 0.2, above 10000 |" in page
    assert "| ngpt | failed |" in page


def test_the_curve_is_the_loss_that_divergence_is_judged_by():
    losses = [float(k % 7) for k in range(30)]
    curve = smoothed(losses)
    assert curve[0] == losses[0]
    assert curve[4] == pytest.approx(sum(losses[:5]) / 5)
    assert curve[-1] == pytest.approx(sum(losses[-10:]) / 10)


def test_a_loss_that_rose_by_less_than_the_margin_is_said(study):
    """A dead model of a small vocabulary may lie less than 1 nat above its lowest loss."""
    dead = Climb(2, None, None, [3.0] * 20 + [2.4] * 20 + [3.2] * 20)
    well = Climb(1, None, None, [3.0] * 20 + [2.4] * 40)
    found = document(study[0], {"gpt": [dead, well], "ngpt": [climb(0.2)] * 2})
    (risen,) = [flag["text"] for flag in found["flags"] if flag["name"] == "risen"]
    assert risen.startswith("gpt, seed 2: ended 0.80 above its lowest loss: by less than 1,")


def test_a_loss_that_rose_above_the_margin_only_at_the_end_is_said(study):
    late = Climb(0, None, None, [2.4] * 40 + [9.4] * 12)
    found = document(study[0], {"gpt": [late], "ngpt": [climb(0.2)]})
    (risen,) = [flag["text"] for flag in found["flags"] if flag["name"] == "risen"]
    assert risen == (
        "gpt, seed 0: ended 7.00 above its lowest loss: for fewer than 20 steps, but it may have "
        "collapsed all the same"
    )


def test_arms_that_are_not_alike_are_refused_by_name_unless_allowed(study, tmp_path):
    arms = {"gpt": study[0].arms["gpt"].recipe}
    arms["long"] = {"recipe": arms["gpt"], "set": {"data.context": 32}}
    table = {"arms": arms, "steps": STEPS}
    with pytest.raises(UserError, match=r"unfair: context: .*data\.context 32 against 16"):
        ramp(study_from(RampStudy, table), tmp_path / "out", nothing)
    assert not (tmp_path / "out").exists()
    allowed = study_from(RampStudy, table | {"allow": ["context"]})
    names = [f["name"] for f in document(allowed, {"gpt": [], "long": []})["flags"]]
    assert "context" in names


def test_where_diverged_runs_come_from_is_known(study, tmp_path):
    planned = climbing(study[1], study[0], "gpt", 0)
    made = read_json(planned.folder / "environment.json")
    climbs = ramp(study[0], study[1], nothing)
    found = document(study[0], climbs)
    assert found["provenance"]["runs_commit"] == made["commit"]
    other = dataclasses.replace(climbs["gpt"][0].record, environment=made | {"commit": "abc"})
    climbs["gpt"][0] = dataclasses.replace(climbs["gpt"][0], record=other)
    found = document(study[0], climbs)
    assert found["provenance"]["runs_commit"] == ", ".join(sorted([made["commit"], "abc"]))
    assert [flag["name"] for flag in found["flags"]] == ["versions"]
    page = write_study(KIND, study[0], climbs, tmp_path).files[1].read_text()
    assert f"Commit: {found['provenance']['runs_commit']}" in page


def test_what_is_refused_can_be_allowed_on_the_command_line(study, tmp_path, capsys):
    gpt = study[0].arms["gpt"].recipe
    long = tmp_path / "long.toml"
    long.write_text(Path(gpt).read_text().replace("context = 16", "context = 32"))
    words = ["lr-ramp", gpt, str(long), "--steps", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "unfair: context" in capsys.readouterr().err
    args = parse(LrRamp, [*words[1:], "--allow", "context"], "lr-ramp")
    assert study_of(args)[0].allow == ["context"]


def test_adam_s_own_rate_climbs_with_muon_s(study, tmp_path):
    keys = {"optim.name": "muon", "optim.adam_lr": 0.016}
    arm = {"recipe": study[0].arms["gpt"].recipe, "set": keys}
    table = {"arms": {"muon": arm}, "steps": STEPS, "peak": 1.0}
    run = climbing(tmp_path, study_from(RampStudy, table), "muon", 0)
    usual = arm_config(study_from(RampStudy, table), "muon").optim
    assert run.config.optim.lr == 1.0
    assert run.config.optim.adam_lr == pytest.approx(0.016 / usual.lr)


def test_a_recipe_whose_decay_ends_early_climbs_to_the_last_step(tmp_path):
    table = {"arms": {"gpt": "normformer2021/gpt-125m"}, "steps": STEPS}
    schedule = climbing(tmp_path, study_from(RampStudy, table), "gpt", 0).config.schedule
    assert (schedule.kind, schedule.end) == ("ramp", 1.0)


def test_a_recipe_whose_decay_is_a_power_climbs_too(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'base = "quickstart/gpt-plus"\n[schedule]\nkind = "wsd"\nfall = "power"\npower = 0.4\n'
    )
    table = {"arms": {"gpt": str(recipe)}, "steps": STEPS}
    schedule = climbing(tmp_path, study_from(RampStudy, table), "gpt", 0).config.schedule
    assert (schedule.kind, schedule.fall, schedule.power) == ("ramp", "linear", None)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"peak": 0.0}, "'start' must be"),
        ({"start": 0.2}, "'start' must be"),
        ({"steps": 1}, "'steps' must be"),
        ({"tune": {"points": 5}}, r"leave \[tune\] out"),
        ({"arms": {"a": {"recipe": "x", "lr": 0.1}}}, r"leave 'arms\.a\.lr' out"),
        ({"set": {"optim.lr": 1.0}}, r"set\.optim\.lr"),
        ({"set": {"schedule.kind": "wsd"}}, "lr-ramp sets 'schedule.kind' itself"),
        (
            {"arms": {"a": {"recipe": "x", "set": {"train.on_spike": "skip"}}}},
            "lr-ramp sets 'train.on_spike' itself",
        ),
    ],
)
def test_what_makes_no_ramp_is_refused_by_name(keys, said):
    with pytest.raises(UserError, match=said):
        study_from(RampStudy, {"arms": {"a": "x"}} | keys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "lr-ramp needs RECIPES"),
        (["quickstart/ngpt", "quickstart/ngpt"], "given twice"),
        (["quickstart/ngpt", "--set", "model.d_model"], "is not KEY=VALUE"),
        (["quickstart/nnpt"], "did you mean 'quickstart/ngpt'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, said, capsys, tmp_path):
    assert main(["lr-ramp", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_recipes_of_the_same_name_are_arms_by_their_whole_name():
    from unitsphere.cli.lr_ramp import arms

    assert list(arms(["a/gpt", "b/gpt.toml"])) == ["a-gpt", "b-gpt"]
    assert list(arms(["a/gpt", "b/ngpt"])) == ["gpt", "ngpt"]


def test_the_report_s_page_has_every_climb(study):
    settings, out, climbs = study
    write_study(KIND, settings, climbs, out)
    page = page_of(out)
    median = document(settings, climbs)["arms"]["gpt"]["lr"]
    assert f"gpt {median:.3g} (seeds from" in page.answer
    climb = next(figure for figure in page.figures() if figure.name == "climb")
    assert sum(line.style == "line" for line in climb.series) == 6
    assert sum(line.style == "cross" for line in climb.series) == 6
    assert climb.log_x


def test_the_page_leaves_out_a_seed_that_is_not_the_study_s(study, tmp_path):
    settings, out, climbs = study
    copy = shutil.copytree(out, tmp_path / "out")
    shutil.copytree(copy / "runs" / "gpt" / "seed-0", copy / "runs" / "gpt" / "seed-9")
    page = write_study(KIND, settings, climbs, copy).page
    climb = next(figure for figure in page.figures() if figure.name == "climb")
    lines = [line.name for line in climb.series if line.style == "line"]
    assert lines == [f"{arm} #{seed}" for arm in ("gpt", "ngpt") for seed in settings.seeds]
