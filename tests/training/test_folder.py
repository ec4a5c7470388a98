"""The run folder: locks and what is kept of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.training.checkpoint.saver import write
from unitsphere.training.checkpoint.store import State
from unitsphere.training.folder import (
    CHECKPOINTS,
    EVALUATIONS,
    add_evaluation,
    cut_evaluations,
    keep_end,
    locked,
    read_evaluations,
)


def evaluation(step: int) -> dict:
    return {"step": step, "tokens": step, "context": 8, "tasks": {"piqa": {"shots": 0, "items": 1}}}


def test_evaluations_that_end_at_once_are_all_kept(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda step: add_evaluation(tmp_path, evaluation(step)), range(40)))
    assert sorted(found["step"] for found in read_evaluations(tmp_path)) == list(range(40))


def test_an_evaluation_replaces_the_one_of_the_same_step(tmp_path):
    add_evaluation(tmp_path, evaluation(1))
    add_evaluation(tmp_path, evaluation(1) | {"tokens": 9})
    assert [found["tokens"] for found in read_evaluations(tmp_path)] == [9]


def test_an_evaluation_with_an_infinite_figure_is_kept_as_json_and_read_back(tmp_path):
    add_evaluation(tmp_path, evaluation(1) | {"tasks": {"text": {"value": float("inf")}}})
    assert "Infinity" not in (tmp_path / EVALUATIONS).read_text()
    assert [found["tasks"] for found in read_evaluations(tmp_path)] == [{"text": {"value": None}}]


def test_a_folder_is_held_once_and_removed_if_it_stays_empty(tmp_path):
    out = tmp_path / "a" / "run"
    with locked(out), pytest.raises(UserError, match="another process trains"), locked(out):
        pass
    assert not out.parent.exists()  # it was made for the folder
    out.parent.mkdir()
    with locked(out):
        pass
    assert list(tmp_path.iterdir()) == [out.parent]
    with locked(out):
        (out / "kept").touch()
    assert out.exists()


def test_a_link_to_a_folder_is_held(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with locked(tmp_path / "link"):
        pass
    assert (tmp_path / "there").is_dir()


def test_a_folder_that_is_removed_meanwhile_ends_no_run_in_a_traceback(tmp_path):
    out = tmp_path / "run"
    with locked(out):
        out.rmdir()


def test_a_lock_on_a_folder_that_was_replaced_is_taken_again(tmp_path, monkeypatch):
    """The process before us removes the folder between our opening and locking it."""
    import fcntl

    out, held, flock = tmp_path / "run", [], fcntl.flock

    def late(handle: int, how: int) -> None:
        if not held:
            out.rmdir()
        held.append(handle)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(out):
        assert out.is_dir()
    assert len(held) == 2


def test_evaluations_of_a_discarded_end_leave_the_run_and_stay_with_the_end(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    cut_evaluations(run, 4)  # a run without evaluations
    assert list(run.iterdir()) == []
    for step in (4, 8):
        add_evaluation(run, evaluation(step))
        write(run / CHECKPOINTS, State(step, step, 0.0, 0, "", ""), {"model.w": torch.zeros(1)})
    kept = keep_end(run, 4)
    cut_evaluations(run, 4)
    assert kept == run / "end-at-8"
    assert [found["step"] for found in read_evaluations(kept)] == [4, 8]
    assert [found["step"] for found in read_evaluations(run)] == [4]
