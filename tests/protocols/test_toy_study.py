"""A kind of study in one file and one registry line: what the core and the report do for it.

The toy study asks which of some depths has the lowest loss.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.cli.study import StudyOptions, run_verb
from unitsphere.config import read_json
from unitsphere.errors import Preempted, UserError
from unitsphere.report import registry
from unitsphere.report.document import Page, Section, Table
from unitsphere.studies.core.execute import Executor, Record, execute
from unitsphere.studies.core.kind import Kind, Part, provenance, run_study, study_folder
from unitsphere.studies.core.plan import RUNS, Planned, plan
from unitsphere.studies.core.spec import Study, load_study

# The one file --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DepthStudy(Study):
    """What the toy study asks: an arm, and the depths to try."""

    depths: list[int] = field(default_factory=lambda: [1, 2])


def planned(study: DepthStudy, out: Path) -> list[Planned]:
    """A run for each depth."""
    (arm,) = study.arms
    return [
        plan(
            f"{arm} {depth}",
            study.arms[arm].recipe,
            study.keys(arm) | {"model.n_layers": depth},
            out / RUNS / f"depth-{depth}",
        )
        for depth in study.depths
    ]


def parts(study: DepthStudy) -> list[Part]:
    """What would be trained."""
    return [Part(run.name, 1, run.config) for run in planned(study, Path("none"))]


def train(study: DepthStudy, out: Path, executor: Executor | None = None) -> list[Record]:
    """Train the depths that are missing."""
    with study_folder(out, study, executor) as executor:
        return execute(planned(study, out), executor)


def document(study: DepthStudy, found: list[Record]) -> dict[str, Any]:
    """Each depth with its loss."""
    losses = {str(r.planned.config.model.n_layers): r.loss for r in found}
    return {"losses": losses, "provenance": provenance()}


def failures(found: list[Record]) -> list[str]:
    """A line for each run that failed."""
    return [f"{r.planned.name}: {r.error}" for r in found if r.status == "failed"]


def page(found: dict[str, Any], folder: Path) -> Page:
    """The answer, and a table."""
    losses = {depth: loss for depth, loss in found["losses"].items() if loss is not None}
    best = min(losses, key=losses.__getitem__)
    rows = [[depth, f"{loss:.4f}"] for depth, loss in losses.items()]
    table = Table("Loss by depth", ["depth", "loss"], rows)
    answer = f"{best} layers have the lowest loss."
    sections = [Section("results", "Results", [table])]
    return Page(folder.name, "Depths", answer, sections, provenance=found["provenance"])


KIND = Kind("depths", DepthStudy, train, document, failures, parts)

# The one line --------------------------------------------------------------------------------

LINE = {"depths": page}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(registry.KINDS, *next(iter(LINE.items())))


@pytest.fixture
def study(tmp_path) -> DepthStudy:
    text = f'depths = [1, 2]\n[arms]\ngpt = "{recipes(tmp_path)[0]}"\n'
    (tmp_path / "mine.toml").write_text(text)
    return load_study(DepthStudy, tmp_path / "mine.toml")


def test_it_is_forecast(study, tmp_path, capsys):
    assert run_verb(KIND, study, StudyOptions(dry_run=True, json=True), tmp_path / "out") == 0
    found = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in found["parts"]] == ["gpt 1", "gpt 2"]
    assert found["runs"] == 2


def test_it_is_trained_resumed_and_written_with_its_kind(study, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Preempted):
        run_study(KIND, study, out, InProcess(stop=1))
    executor = InProcess()
    outcome = run_study(KIND, study, out, executor)
    assert executor.ran == ["gpt 2"]
    written = read_json(out / "results.json")
    assert written == outcome.document
    assert written["kind"] == "depths"
    assert list(written["losses"]) == ["1", "2"]
    assert "layers have the lowest loss." in (out / "results.md").read_text()
    with pytest.raises(UserError, match="holds another study"):
        run_study(KIND, dataclasses.replace(study, depths=[1, 3]), out, InProcess())


def test_the_report_shows_it(study, tmp_path, capsys):
    out = tmp_path / "out"
    run_study(KIND, study, out, InProcess())
    assert main(["report", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "Depths"
    assert told["answer"].endswith("layers have the lowest loss.")
    assert "Loss by depth" in (out / "report.html").read_text()


def test_a_failed_run_is_told_and_the_exit_status_is_1(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "unitsphere.studies.core.execute.here", lambda *_: InProcess(broken=["gpt 2"])
    )
    assert run_verb(KIND, study, StudyOptions(), tmp_path / "out") == 1
    said = capsys.readouterr()
    assert "1 layers have the lowest loss." in said.out
    assert "failed: gpt 2: the disk is full" in said.err
