"""Folders of version 0.1.0 (commit 0e1c6e2) open and resume: a run, a study and an export.

`tests/kept` holds them as that version wrote them: six steps of models with 12,336 parameters, in
fp32 on a CPU.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from unitsphere.cli import main

KEPT = Path(__file__).parent / "kept"
WEIGHTS = "model-00001-of-00002.safetensors"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A copy of all of them, in the working folder."""
    shutil.copytree(KEPT, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def figures(capsys, *words: str) -> dict:
    """What a verb prints as JSON."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records]


def test_a_finished_run_is_not_trained_again(kept, capsys):
    before = (kept / "run/metrics.jsonl").read_bytes()
    assert main(["train", "run.toml", "--out", "run"]) == 0
    assert "nothing to train" in capsys.readouterr().err
    assert (kept / "run/metrics.jsonl").read_bytes() == before


def test_a_run_resumes_from_its_checkpoint_to_the_same_weights_and_losses(kept):
    shutil.rmtree(kept / "run/checkpoints/step-00000006")
    assert main(["train", "run.toml", "--out", "run"]) == 0
    ours, theirs = (
        load_file(at / "run/checkpoints/step-00000006" / WEIGHTS) for at in (kept, KEPT)
    )
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert (weight - theirs[name]).norm() <= 1e-5 * theirs[name].norm(), name
    assert losses(kept / "run") == pytest.approx(losses(KEPT / "run"), abs=1e-5)


def test_a_run_is_evaluated_and_inspected(kept, capsys):
    found = figures(capsys, "eval", "run", "--data", "text.jsonl")
    assert found["tokens"] > 1000
    assert figures(capsys, "inspect", "run", "--data", "text.jsonl")


def test_an_export_says_what_its_run_says(kept, capsys):
    run, export = (
        figures(capsys, "eval", folder, "--data", "text.jsonl", "--context", "16")
        for folder in ("run", "export")
    )
    assert export["loss"] == pytest.approx(run["loss"], abs=1e-6)


def test_a_study_trains_nothing_again_and_gives_the_same_results(kept, capsys):
    path = kept / "study.toml"  # its baseline's tied rates are refused since, unless it allows them
    path.write_text('allow = ["tied-rates"]\n' + path.read_text())
    before = json.loads((KEPT / "study/results.json").read_text())
    trained = sorted((kept / "study").rglob("metrics.jsonl"))
    stamps = [path.stat().st_mtime_ns for path in trained]
    found = figures(capsys, "compare", "study.toml", "--out", "study", "--workers", "1")
    assert [path.stat().st_mtime_ns for path in trained] == stamps
    assert found["arms"].keys() == before["arms"].keys()
    for arm, result in before["arms"].items():
        assert found["arms"][arm]["budgets"] == result["budgets"]
    assert main(["report", "study", "--out", "page.html"]) == 0
    assert "ngpt" in (kept / "page.html").read_text()
