"""`unitsphere compare` as it is typed: a toy study, mistakes, exit statuses."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from studies.documents import played
from studies.inprocess import trained_here
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.cli.output import hours
from unitsphere.errors import Preempted
from unitsphere.studies import compare as module
from unitsphere.studies.compare import CompareStudy, find_study, resolved, shipped_studies
from unitsphere.studies.core.fairness import check_fair
from unitsphere.studies.core.spec import load_study

STUDY = """
budgets = [384]
seeds = [0, 1]
allow = ["tied-rates"]
arms = {{ gpt = "{0}", ngpt = {{ recipe = "{1}", set = {{ {2} }} }} }}
tune = {{ points = 1 }}
run = {{ workers = 2 }}
"""


def study(folder: Path, changes: str = "") -> Path:
    """The file of a toy study; `changes` are keys set in its second arm."""
    gpt, ngpt, _ = recipes(folder)
    path = folder / "toy.toml"
    path.write_text(STUDY.format(gpt, ngpt, changes))
    return path


def test_a_toy_study_end_to_end(tmp_path, capsys):
    argv = ["compare", str(study(tmp_path)), "--out", str(tmp_path / "out")]
    with trained_here():
        assert main([*argv, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert list(found["arms"]) == ["gpt", "ngpt"]
    assert len(found["arms"]["gpt"]["budgets"][0]["seeds"]) == 2
    assert "runs to train: 4" in said.err
    assert [flag["name"] for flag in found["flags"]] == ["tied-rates", "parameters", "untuned"]

    assert main(argv) == 0
    said = capsys.readouterr()
    assert "runs to train" not in said.err
    assert max(map(len, said.out.splitlines()[:-3])) <= 200
    assert f"{found['arms']['ngpt']['budgets'][0]['loss']:.4f}" in said.out
    assert "[untuned] " in said.out
    files = [str(tmp_path / "out" / name) for name in ("results.json", "results.md", "loss.png")]
    assert said.out.splitlines()[-3:] == files
    assert all(os.path.getsize(file) for file in files)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["compare"], "compare needs STUDY"),
        (["compare", "quikstart"], "no study 'quikstart' (did you mean 'quickstart'?)"),
        (["compare", "gone.toml"], "cannot read gone.toml"),
        (["compare", "quickstart", "--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(argv, message, capsys):
    assert main(argv) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.splitlines()) == 1


def test_an_unfair_study_is_refused_before_anything_is_made(tmp_path, capsys):
    path = study(tmp_path, '"data.context" = 32')
    assert main(["compare", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "unfair: context: ngpt and gpt differ in data.context 32 against 16" in said
    assert 'allow = ["context"]' in said
    assert not (tmp_path / "out").exists()


def test_stopped_and_saved_is_75(tmp_path, capsys, monkeypatch):
    def stop(study, out, executor):
        raise Preempted("stopped and saved: the same command resumes there")

    monkeypatch.setattr(module, "KIND", dataclasses.replace(module.KIND, train=stop))
    assert main(["compare", str(study(tmp_path)), "--out", str(tmp_path / "out")]) == 75
    assert "the same command resumes" in capsys.readouterr().err


def test_a_failed_run_is_1(tmp_path, capsys, monkeypatch):
    path, out = study(tmp_path), tmp_path / "out"
    out.mkdir()
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5})
    found["flags"].append({"name": "failed", "text": "ngpt: the disk is full"})
    kind = dataclasses.replace(
        module.KIND,
        train=lambda study, out, executor: found,
        document=lambda study, found: found,
        failures=lambda found: ["ngpt: the disk is full"],
    )
    monkeypatch.setattr(module, "KIND", kind)
    assert main(["compare", str(path), "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "[failed] ngpt: the disk is full" in said.out
    assert "failed: ngpt: the disk is full" in said.err


@pytest.mark.parametrize("name", shipped_studies())
def test_a_shipped_study_is_fair_and_has_a_folder_of_its_own(name):
    path, out = find_study(name, "compare")
    found = load_study(CompareStudy, path)
    assert check_fair({arm: resolved(found, arm) for arm in found.arms}, found.reference, []) == []
    assert out == Path("runs") / f"compare-{name}"
    assert find_study("mine/that.toml", "compare") == (Path("mine/that.toml"), Path("runs/that"))


def test_an_estimate_is_in_a_unit_that_can_be_read():
    said = [hours(count) for count in (1 / 3600, 0.001, 1 / 60, 0.5, 1, 2.5, 99.7, 250)]
    assert said[:3] == ["1 second", "3.6 seconds", "1 minute"]
    assert said[3:] == ["30 minutes", "1 hour", "2.5 hours", "100 hours", "250 hours"]


def test_a_dry_run_says_that_the_start_of_runs_is_not_counted(tmp_path, capsys):
    assert main(["compare", str(study(tmp_path)), "--dry_run"]) == 0
    assert "(without the start of each run, which takes seconds)" in capsys.readouterr().out
