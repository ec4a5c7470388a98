"""The quickstart with tiny arms, end to end: trains, reuses, resumes, fails loudly."""

import json
import re
import shutil
from pathlib import Path

import pytest
from studies.inprocess import trained_here
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.cli.study import report
from unitsphere.config import read_json
from unitsphere.errors import Preempted, UserError
from unitsphere.studies.core import execute as module
from unitsphere.studies.core.jobs import Interrupted, State
from unitsphere.studies.core.plan import with_overrides
from unitsphere.studies.quickstart import (
    KIND,
    PROMPT,
    continued,
    first_step_below,
    quickstart_study,
    wrote,
)
from unitsphere.training.folder import locked
from unitsphere.training.forecast import size_of
from unitsphere.training.recipes import load_recipe


def quickstart(out, arms, overrides=None, as_json=False) -> int:
    return report(KIND, quickstart_study(arms, overrides), out, as_json)


@pytest.fixture(autouse=True, scope="module")
def _here():
    with trained_here():
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Path, list[str]]:
    """A finished quickstart of three tiny arms; tests work on copies."""
    folder = tmp_path_factory.mktemp("quickstart")
    arms = recipes(folder)
    assert quickstart(folder / "runs", arms) == 0
    return folder / "runs", arms


@pytest.fixture
def copy(study, tmp_path) -> tuple[Path, list[str]]:
    out = tmp_path / "runs"
    shutil.copytree(study[0], out)
    return out, study[1]


def test_it_leaves_run_folders_a_summary_and_curves(study):
    out, _ = study
    summary = read_json(out / "summary.json")
    assert summary["baseline"] == "gpt"
    assert [arm["name"] for arm in summary["arms"]] == ["gpt", "ngpt", "angpt"]
    assert summary["failed"] == []
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert summary["report"] == str(out / "report.html")
    assert all(f"{arm['bits_per_byte']:.3f}" in page for arm in summary["arms"])
    for arm in summary["arms"]:
        assert (arm["steps"], arm["tokens"]) == (6, 6 * 64)
        assert arm["parameters"] > 0
        assert arm["ms_per_step"] > 0
        assert (out / arm["name"] / "checkpoints" / "step-00000006").is_dir()
        records = [json.loads(x) for x in (out / arm["name"] / "metrics.jsonl").open()]
        assert arm["bits_per_byte"] == records[-1]["val_bits_per_byte"]
        assert arm["seconds"] == records[-1]["time"]
        assert arm["name"] in summary["samples"]
    assert summary["arms"][0]["steps_to_baseline"] <= 6


def test_finished_arms_are_reused_and_it_says_so(copy, capsys, monkeypatch):
    out, arms = copy
    monkeypatch.setattr(module, "run_jobs", lambda *_, **__: pytest.fail("trained a finished arm"))
    assert quickstart(out, arms) == 0
    said = capsys.readouterr()
    for name in ("gpt", "ngpt", "angpt"):
        assert (
            f"{name}: finished earlier, reused; delete {out / name} to train it again" in said.err
        )
        assert f"{name} wrote:" in said.out
    assert "curves" in said.out


def test_json_is_one_document_on_stdout(copy, capsys):
    out, arms = copy
    assert quickstart(out, arms, as_json=True) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == read_json(out / "summary.json")
    assert "reused" in said.err


def test_an_interrupted_arm_continues_and_gives_the_same_figures(copy, capsys):
    out, arms = copy
    before = read_json(out / "summary.json")["arms"][1]
    # As after Ctrl-C at step 4: the last checkpoint and what was logged after it are missing.
    shutil.rmtree(out / "ngpt" / "checkpoints" / "step-00000006")
    assert quickstart(out, arms) == 0
    assert "ngpt: resumes from its last checkpoint" in capsys.readouterr().err
    after = read_json(out / "summary.json")["arms"][1]
    assert after["bits_per_byte"] == before["bits_per_byte"]
    assert "from step 4" in (out / "ngpt.log").read_text()


def test_a_failed_arm_is_shown_and_the_others_are_reported(copy, capsys):
    out, arms = copy
    broken = out / "angpt" / "config.json"
    shutil.rmtree(out / "angpt" / "checkpoints")
    # A run that cannot begin: where its checkpoints belong there is a file.
    (out / "angpt" / "checkpoints").touch()
    assert broken.exists()
    assert quickstart(out, arms) == 1
    said = capsys.readouterr()
    assert "failed: angpt: " in said.err
    assert str(out / "angpt.log") in said.err
    assert "ngpt wrote:" in said.out
    assert "angpt wrote:" not in said.out
    summary = read_json(out / "summary.json")
    assert [arm["name"] for arm in summary["arms"]] == ["gpt", "ngpt"]
    assert summary["failed"][0]["name"] == "angpt"


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (None, "holds no record"),
        ("tokens_per_second", "no tokens_per_second"),
        ("val_bits_per_byte", "no val_bits_per_byte"),
    ],
)
def test_a_finished_arm_without_its_figures_is_shown_as_failed(copy, capsys, left_out, said):
    out, arms = copy
    metrics = out / "angpt" / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.open()] if left_out else []
    kept = [{k: v for k, v in record.items() if k != left_out} for record in records]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in kept))
    assert quickstart(out, arms) == 1
    assert re.search(f"failed: angpt: .*{said}", capsys.readouterr().err)
    summary = read_json(out / "summary.json")
    assert [arm["name"] for arm in summary["arms"]] == ["gpt", "ngpt"]
    assert [arm["name"] for arm in summary["failed"]] == ["angpt"]


def test_without_the_baseline_nothing_is_compared_with_it(copy, capsys, monkeypatch):
    out, arms = copy
    shutil.rmtree(out / "gpt")

    def fail(jobs, *_):
        return [State(jobs[0], "failed", error="the disk is full")]

    monkeypatch.setattr(module, "run_jobs", fail)
    assert quickstart(out, arms) == 1
    said = capsys.readouterr()
    assert "last loss" not in said.out
    assert "failed: gpt: the disk is full" in said.err
    assert read_json(out / "summary.json")["baseline"] is None


def test_a_folder_of_other_settings_is_refused_before_anything_trains(copy, monkeypatch):
    out, arms = copy
    monkeypatch.setattr(module, "run_jobs", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(UserError, match=r"another config .*train\.steps: 6 -> 8"):
        quickstart(out, arms, {"train.steps": 8})


def test_a_folder_of_something_else_is_refused_before_anything_trains(copy, monkeypatch):
    out, arms = copy
    monkeypatch.setattr(module, "run_jobs", lambda *_, **__: pytest.fail("trained"))
    run = out / "ngpt"
    before = sorted(run.iterdir())
    with pytest.raises(UserError, match="ngpt is not empty and holds no quickstart: give --out"):
        quickstart(run, arms)
    assert sorted(run.iterdir()) == before


def test_ctrl_c_says_how_to_resume(copy, monkeypatch):
    out, arms = copy
    shutil.rmtree(out / "gpt")

    def interrupt(jobs, *_):
        raise Interrupted([])

    monkeypatch.setattr(module, "run_jobs", interrupt)
    with pytest.raises(Preempted, match=r"runs: stopped and saved: the same command resumes"):
        quickstart(out, arms)


def test_steps_to_the_baseline_are_never_interpolated():
    curve = {10: 4.0, 20: 3.0, 30: 2.0, 40: 1.9}
    assert first_step_below(curve, 2.5) == 30
    assert first_step_below(curve, 3.0) == 20
    assert first_step_below(curve, 1.8) is None


def test_what_an_arm_writes_begins_with_the_prompt_and_is_always_the_same(study):
    out, _ = study
    samples = read_json(out / "summary.json")["samples"]
    assert all(text.startswith(PROMPT) and len(text) > len(PROMPT) for text in samples.values())
    assert continued(out / "ngpt") == samples["ngpt"]
    (shown,) = wrote({"ngpt": f"{PROMPT}(self):\n\n        pass\n"})
    assert shown.lines == ["ngpt wrote:", "      def read(self):", "          pass"]


def test_fewer_workers_than_one_and_a_folder_in_use_are_refused(tmp_path, capsys):
    for workers in ("0", "-1"):
        assert main(["quickstart", "--workers", workers, "--out", str(tmp_path / "new")]) == 2
        assert "--workers must be at least 1" in capsys.readouterr().err
    with locked(tmp_path / "used"), pytest.raises(UserError, match="another process"):
        quickstart(tmp_path / "used", recipes(tmp_path))
    assert not (tmp_path / "new").exists()


def test_a_seq2seq_model_is_counted_with_its_encoder(tmp_path):
    sizes = {"model.vocab_size": 64, "model.n_layers": 2}
    one, both = (
        size_of(with_overrides(load_recipe("quickstart/ngpt"), sizes | {"objective": kind}))
        for kind in ("clm", "seq2seq")
    )
    assert both.parameters > 1.5 * one.parameters


def test_overrides_are_as_strict_as_flags(tmp_path):
    config = load_recipe(recipes(tmp_path)[0])
    assert with_overrides(config, {"train.steps": 9, "optim.lr": 1.0}).train.steps == 9
    with pytest.raises(UserError, match=r"unknown key 'train.stps'.*steps"):
        with_overrides(config, {"train.stps": 9})
    with pytest.raises(UserError, match="unknown key 'trian'"):
        with_overrides(config, {"trian.steps": 9})
    for key in ("optim.lr.x", "optim.lr.x.y", "data.validation.x"):
        with pytest.raises(UserError, match=f"unknown key '{key}': '.*' has no keys of its own"):
            with_overrides(config, {key: 9})
