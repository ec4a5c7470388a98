"""A study's folder: one study, one process at a time."""

import dataclasses

import pytest

from unitsphere.errors import Preempted, UserError
from unitsphere.studies.core.kind import study_folder
from unitsphere.studies.core.local import Interrupted
from unitsphere.studies.core.spec import ArmSpec, Execution, Study, load_study

STUDY = Study(arms={"gpt": ArmSpec("quickstart/gpt-plus")}, set={"data.field": "body"})


def test_the_record_is_written_once_and_the_same_study_continues(tmp_path):
    out = tmp_path / "study"
    with study_folder(out, STUDY):
        before = (out / "study.toml").stat().st_mtime_ns
    assert load_study(Study, out / "study.toml") == STUDY
    with study_folder(out, dataclasses.replace(STUDY, run=Execution(workers=9))):
        assert (out / "study.toml").stat().st_mtime_ns == before


def test_another_study_is_refused_by_the_key_that_differs(tmp_path):
    with study_folder(tmp_path / "study", STUDY):
        pass
    other = dataclasses.replace(STUDY, seeds=[7], set={"data.field": "text"})
    message = r"another study \(seeds: .*\[7\]; set.data.field: 'body' -> 'text'\)"
    with (
        pytest.raises(UserError, match=message),
        study_folder(tmp_path / "study", other),
    ):
        pytest.fail("it was let in")


def test_a_mistake_before_any_run_leaves_no_record_and_the_corrected_study_is_let_in(tmp_path):
    """A missing data.source is found when the folder is already held."""
    with pytest.raises(UserError, match="no such file"), study_folder(tmp_path / "study", STUDY):
        raise UserError("no such file: wiki.jsonl")
    other = dataclasses.replace(STUDY, set={"data.source": "wiki.txt"})
    with study_folder(tmp_path / "study", other):
        (tmp_path / "study/runs").mkdir()
    with pytest.raises(UserError, match="disk"), study_folder(tmp_path / "study", other):
        raise UserError("the disk is full")
    with pytest.raises(UserError, match="holds another"), study_folder(tmp_path / "study", STUDY):
        pytest.fail("it was let in")


def test_without_its_record_a_study_s_runs_serve_another(tmp_path):
    (tmp_path / "runs").mkdir()
    with study_folder(tmp_path, STUDY):
        assert (tmp_path / "study.toml").exists()


def test_a_folder_of_anything_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(UserError, match="holds no study: give --out another folder"),
        study_folder(tmp_path, STUDY),
    ):
        pytest.fail("it was let in")


def test_two_processes_do_not_share_a_folder(tmp_path):
    with (
        study_folder(tmp_path, STUDY),
        pytest.raises(UserError, match="another process"),
        study_folder(tmp_path, STUDY),
    ):
        pytest.fail("it was let in")


def test_an_interruption_says_how_to_resume(tmp_path):
    with pytest.raises(Preempted, match="the same command resumes"), study_folder(tmp_path, STUDY):
        raise Interrupted([])
