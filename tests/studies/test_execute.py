"""Planned runs to records: reuse, divergence told from failure, and one failure alone."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.report.runs import Run
from unitsphere.studies.core.execute import (
    execute,
    executor_of,
    has_ended,
    read_record,
    runs_commit,
    timing,
)
from unitsphere.studies.core.local import Interrupted
from unitsphere.studies.core.plan import plan
from unitsphere.studies.core.spec import Execution
from unitsphere.training.config import steps_for
from unitsphere.training.guard import divergence
from unitsphere.training.log import read_metrics

ONE_WORKER = executor_of(Execution(workers=1), Path())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: one that trains, as a program; then one that cannot begin, one that diverges."""
    folder = tmp_path_factory.mktemp("execute")
    recipe = recipes(folder)[0]
    planned = [
        plan("good", recipe, {"train.seed": 3}, folder / "runs" / "good"),
        plan("wild", recipe, {"optim.lr": 1e30}, folder / "runs" / "wild"),
        plan("broken", recipe, {}, folder / "runs" / "broken"),
    ]
    planned[2] = dataclasses.replace(planned[2], recipe=str(folder / "gone.toml"))
    good, wild, broken = planned
    failing = execute([broken, wild], InProcess())
    return planned, [*execute([good], ONE_WORKER), *reversed(failing)]


def nothing(jobs):
    pytest.fail(f"trained {[job.name for job in jobs]}")


def test_one_failure_ends_no_other_and_divergence_is_a_result(runs):
    planned, (good, wild, broken) = runs
    assert [r.status for r in (good, wild, broken)] == ["finished", "diverged", "failed"]
    assert good.planned is planned[0]
    assert 0 < good.loss < 6
    assert good.bits_per_byte == pytest.approx(good.loss / 0.6931, rel=0.2)
    assert good.seconds > 0
    assert good.tokens_per_second > 0
    assert good.environment["threads"] == 1
    assert "gradient norm" in wild.error
    assert wild.loss is None
    assert "cannot read" in broken.error


def test_neither_a_finished_nor_a_diverged_run_is_trained_again(runs):
    planned, before = runs
    assert execute(planned[:2], nothing) == before[:2]


@pytest.mark.parametrize("ending", [".diverged", ".stopped"])
def test_a_mark_without_its_run_says_nothing_of_the_one_in_its_place(runs, tmp_path, ending):
    """Who deletes a folder, to train with other settings, may leave the mark beside it."""
    good = runs[0][0]
    run = plan("good", good.recipe, {"train.seed": 5}, tmp_path / "runs" / "good")
    mark = run.folder.with_name(run.folder.name + ending)
    mark.parent.mkdir()
    mark.write_text("an earlier run diverged")
    (record,) = execute([run], InProcess())
    assert record.status == "finished"
    assert not mark.exists()


def test_a_failed_run_is_tried_again_and_one_asked_for_twice_is_trained_once(runs, capsys):
    planned, _ = runs
    corrected = dataclasses.replace(planned[2], recipe=planned[0].recipe)
    first, second, _ = execute([corrected, corrected, planned[0]], InProcess())
    assert first.status == "finished"
    assert first == second
    assert "runs to train: 1 (1 finished earlier)\n" in capsys.readouterr().err


def test_a_run_that_ends_far_above_a_guess_has_diverged(runs, tmp_path):
    """Else 464 nats would be averaged with losses of models that have learned something."""
    good = runs[0][0]
    run = dataclasses.replace(good, folder=tmp_path / "good")
    shutil.copytree(good.folder, run.folder)
    metrics = run.folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    guess = math.log(run.config.model.vocab_size)
    for loss, status in ((guess + 0.9, "finished"), (guess + 1.1, "diverged")):
        changed = [line | {"val_loss": loss} if "val_loss" in line else line for line in lines]
        metrics.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
        assert read_record(run).status == status


def test_a_damaged_run_says_that_it_may_be_deleted(tmp_path):
    folder = tmp_path / "seed-0"
    folder.mkdir()
    (folder / "config.json").write_text('{"architecture"')
    with pytest.raises(UserError, match=r"config\.json.*; or delete .*seed-0, and it is trained"):
        plan("good", recipes(tmp_path)[0], {}, folder)


def test_no_run_is_trained_beside_a_finished_one_of_other_text(tmp_path):
    recipe, text = recipes(tmp_path)[0], tmp_path / "text.jsonl"
    first, second = (
        plan(f"seed {n}", recipe, {"train.seed": n}, tmp_path / str(n)) for n in (0, 1)
    )
    execute([first], InProcess())
    before = text.read_text()
    text.write_text(before.replace("foxes", "hares"))
    with pytest.raises(UserError, match=r"text\.jsonl has changed since .*0 was trained on it"):
        execute([first, second], nothing)
    assert execute([first], nothing)[0].status == "finished"
    text.write_text(before)
    assert [record.status for record in execute([first, second], InProcess())] == ["finished"] * 2


def test_a_study_asks_for_the_end_alone(runs):
    planned, _ = runs
    config = read_json(planned[0].folder / "config.json")
    assert config["train"]["eval_every"] == 0
    assert [p.tokens for p in planned] == [6 * 64] * 3
    assert (planned[0].seed, planned[1].lr) == (3, 1e30)


def test_a_folder_of_another_run_is_refused(runs):
    planned, _ = runs
    with pytest.raises(UserError, match=r"another config .*train\.steps"):
        plan("good", planned[0].recipe, {"train.steps": 7, "train.seed": 3}, planned[0].folder)


def test_a_run_that_was_scored_on_another_part_is_refused(runs):
    run = runs[0][0]
    with pytest.raises(UserError, match=r"was scored with train\.eval_tokens None, not 64"):
        plan("good", run.recipe, {**run.keys, "train.eval_tokens": 64}, run.folder)


def test_a_mark_of_divergence_lies_beside_the_run(runs):
    planned, (_, wild, _) = runs
    assert divergence(planned[1].folder).read_text().strip() == wild.error
    assert [Run("run", "arm", run.folder).diverged for run in planned[:2]] == [False, True]


def test_what_ended_before_an_interruption_is_known_after_it(tmp_path):
    """A diverged run and one that was stopped early; the third was still to come."""
    recipe = recipes(tmp_path)[0]
    names = ("wild", "slow", "later")
    keys = {"wild": {"optim.lr": 1e30}, "slow": {"train.steps": 100_000}, "later": {}}
    planned = [plan(n, recipe, keys[n], tmp_path / "runs" / n) for n in names]

    def watch(states):
        slow = states[1]
        if slow.step:
            slow.stop = "too slow"
        if slow.status == "interrupted" and not (tmp_path / "left").exists():
            (tmp_path / "left").touch()
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        execute(planned, ONE_WORKER, watch)
    assert [has_ended(run.folder) for run in planned] == [True, True, False]
    assert "gradient norm" in read_record(planned[0]).error
    assert read_record(planned[1]).error == "too slow"


def test_budgets_become_steps():
    assert steps_for(500_000, 2048) == 244
    assert steps_for(1_100, 2048) == 1
    with pytest.raises(UserError, match=r"1 training tokens are less than a step of 2,048"):
        steps_for(1, 2048)
    assert [short(n) for n in (640, 500_000, 999_999, 2 * 10**9)] == ["640", "500k", "1M", "2B"]


def test_a_damaged_run_is_a_failed_one_among_others(runs, tmp_path):
    planned, (good, _, _) = runs
    run = dataclasses.replace(planned[0], folder=tmp_path / "good")
    shutil.copytree(planned[0].folder, run.folder)
    for weights in run.folder.rglob("checkpoints/*/*.safetensors"):
        weights.write_bytes(b"")
    damaged, other = execute([run, planned[0]], InProcess())
    assert damaged.status == "failed"
    assert "give another --out" in damaged.error
    assert other == good


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of the finished run."""
    run = dataclasses.replace(runs[0][0], folder=tmp_path / "good")
    shutil.copytree(runs[0][0].folder, run.folder)
    return run


def rewrite(run, change):
    """Replace the run's records by what `change` makes of them."""
    records = change(read_metrics(run.folder))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run.folder / "metrics.jsonl").write_text(lines)


def without(record, *keys):
    return {key: value for key, value in record.items() if key not in keys}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda records: [], "holds no record"),
        (lambda records: records[:-1], r"ends at step \d of 6"),
        (lambda records: [without(r, "time") for r in records], "holds no record"),
        (lambda records: [r | {"tokens_per_second": []} for r in records], "holds no record"),
    ],
    ids=["empty", "incomplete", "no time", "no rates"],
)
def test_a_finished_run_without_its_records_is_a_failed_one(copied, change, said):
    rewrite(copied, change)
    record = read_record(copied)
    assert record.status == "failed"
    assert re.search(said, record.error)


def test_a_finished_run_without_its_metrics_is_a_failed_one(copied):
    (copied.folder / "metrics.jsonl").unlink()
    record = read_record(copied)
    assert record.status == "failed"
    assert "holds no record" in record.error


def test_a_run_whose_records_have_no_rates_is_finished_without_one(copied, runs):
    rewrite(copied, lambda records: [without(r, "tokens_per_second") for r in records])
    record = read_record(copied)
    assert record.status == "finished"
    assert record.tokens_per_second is None
    assert record.loss == runs[1][0].loss


def test_a_last_record_without_a_validation_loss_is_a_diverged_run(copied):
    rewrite(copied, lambda records: [*records[:-1], without(records[-1], "val_loss")])
    assert read_record(copied).status == "diverged"


def test_a_run_that_its_own_divergence_ended_says_at_which_step(copied):
    ended = {"diverged": 3, "step": 5}
    rewrite(copied, lambda records: [*records[:-1], without(records[-1], "val_loss") | ended])
    record = read_record(copied)
    assert (record.status, record.error) == ("diverged", "diverged at step 3")


@pytest.mark.parametrize("document", ["[]", "5", "null", '"text"'])
def test_an_environment_that_is_no_object_fails_that_run_alone(copied, document):
    (copied.folder / "environment.json").write_text(document)
    record = read_record(copied)
    assert record.status == "failed"
    assert "must hold a JSON object" in record.error


@pytest.mark.parametrize("resumed", [5, [5], {"step": 1}])
def test_an_environment_whose_resumptions_are_odd_names_the_first_place(copied, resumed):
    path = copied.folder / "environment.json"
    first = read_json(path)
    path.write_text(json.dumps(first | {"resumed": resumed}))
    record = read_record(copied)
    assert timing([record]) == ""
    assert runs_commit([record]) == first.get("commit")
