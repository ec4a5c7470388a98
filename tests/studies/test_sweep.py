"""A sweep of tiny runs, trained in this process: its trials, its best, what it reports."""

import dataclasses
import json
from pathlib import Path

import pytest
from inprocess import InProcess
from tiny import recipes
from tokenizers import Tokenizer, models, pre_tokenizers

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.report.kinds.sweep import answer, findings, reported
from unitsphere.report.registry import page_of
from unitsphere.report.render.text import terminal
from unitsphere.studies.core.execute import execute
from unitsphere.studies.core.kind import write_study
from unitsphere.studies.core.space import Choices
from unitsphere.studies.core.spec import study_from
from unitsphere.studies.sweep import (
    KIND,
    SweepStudy,
    document,
    failures,
    sweep,
    trial_runs,
    write_best,
)
from unitsphere.studies.trials import MedianRule, Trial, importance, measure
from unitsphere.training.recipes import load_recipe


def study_of(recipe: str, **changes) -> SweepStudy:
    table = {
        "tokens": 400,
        "seeds": [0, 1],
        "arms": {"ngpt": recipe},
        "search": {
            "optim.lr": {"low": 1e-3, "high": 1e-1, "log": True, "points": 2},
            "model": {"alpha": {"init": [0.05, 0.5]}},
        },
    }
    return study_from(SweepStudy, table | changes)


@dataclasses.dataclass
class Case:
    study: SweepStudy
    out: Path
    executor: InProcess
    found: dict
    document: dict


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    return recipes(tmp_path_factory.mktemp("recipes"))[1]


@pytest.fixture(scope="module")
def case(recipe, tmp_path_factory) -> Case:
    out = tmp_path_factory.mktemp("sweep") / "out"
    study, executor = study_of(recipe), InProcess()
    found = sweep(study, out, executor)
    return Case(study, out, executor, found, {"kind": KIND.name, **document(study, found)})


def text_of(study: SweepStudy) -> str:
    """The source that the arm's recipe names."""
    return load_recipe(study.arms["ngpt"].recipe).data.source


def test_every_point_is_a_trial_on_the_tuning_split_and_the_best_is_reported(case):
    found = case.found["ngpt"]
    assert len(found.trials) == 4
    assert [t.status for t in found.trials] == ["finished"] * 4
    figures = {t.number: t.figure for t in found.trials}
    assert found.best.number == min(figures, key=figures.__getitem__)
    planned = found.trials[0].records[0].planned
    assert planned.config.optim.lr == 1e-3
    assert planned.config.model.alpha.init == 0.05
    assert planned.config.train.steps == 6
    assert planned.config.data.source != found.as_is[0].planned.config.data.source
    for runs in (found.as_is, found.at_best):
        assert sorted(runs) == [0, 1]
        assert {r.planned.config.data.source for r in runs.values()} == {text_of(case.study)}
    assert found.as_is[0].planned.config.optim.lr == 2e-2
    assert found.at_best[0].planned.config.optim.lr == found.best.params["optim.lr"]
    assert found.at_best[1].planned.config.train.seed == 1


def test_a_best_point_that_is_the_recipe_is_not_trained_again(recipe, tmp_path):
    study, executor = study_of(recipe, search={"optim.lr": [2e-2]}), InProcess()
    swept = sweep(study, tmp_path / "out", executor)["ngpt"]
    assert swept.at_best == swept.as_is
    assert len(list((tmp_path / "out/runs/ngpt").iterdir())) == 2  # as-is and the trial
    assert len(swept.reported) == 2
    arm = document(study, {"ngpt": swept})["arms"]["ngpt"]
    assert arm["reported"]["difference"] is None
    assert not any("best − recipe" in line for line in findings("ngpt", arm))
    assert answer("ngpt", arm) == "ngpt does best with optim.lr = 0.02, as its recipe is."


def test_a_best_point_of_which_no_runsrun_finished_is_not_called_the_recipe(case):
    arm = case.document["arms"]["ngpt"]
    best = {seed: run | {"status": "failed"} for seed, run in arm["reported"]["best"].items()}
    runs = arm["reported"] | {"best": best, "difference": None}
    said = answer("ngpt", arm | {"reported": runs})
    assert said.endswith("; no seed of which both it and the recipe finished, nothing can be said.")


def test_the_document_says_what_was_found(case):
    arm = case.document["arms"]["ngpt"]
    best = case.found["ngpt"].best
    assert arm["best"] == {"trial": best.number, "params": best.params}
    assert arm["at_edge"] == ["optim.lr"]
    assert len(arm["trials"]) == 4
    assert arm["trials"][0]["seeds"]["100"]["status"] == "finished"
    means = {
        kind: sum(run["bits_per_byte"] for run in arm["reported"][kind].values()) / 2
        for kind in ("as_is", "best")
    }
    gap = arm["reported"]["difference"]
    assert gap["mean"] == pytest.approx(means["best"] - means["as_is"])
    assert gap["low"] < gap["mean"] < gap["high"]
    assert set(arm["importance"]) == {"optim.lr", "model.alpha.init"}
    lines = "\n".join(findings("ngpt", arm))
    assert "best at the edge of what was tried: optim.lr" in lines
    assert "trials: 4 finished" in lines
    assert "best − recipe:" in lines


def test_files_and_table(case):
    outcome = write_study(KIND, case.study, case.found, case.out)
    files = outcome.files
    assert [path.name for path in files] == [
        "results.json",
        "results.md",
        "trials.png",
        "ngpt-best.toml",
    ]
    assert json.loads(files[0].read_text()) == case.document
    assert "| trial | lr | alpha.init | bits/byte |" in files[1].read_text()
    best = load_recipe(str(files[3]))
    assert best.optim.lr == case.found["ngpt"].best.params["optim.lr"]
    assert best.model.alpha.init == case.found["ngpt"].best.params["model.alpha.init"]
    assert max(map(len, terminal(outcome.page, 80).splitlines())) <= 80
    assert failures(case.found) == []


def test_the_best_point_s_recipe_has_the_sweep_s_length_and_not_its_arm_s(case, tmp_path):
    longer = dataclasses.replace(case.study, tokens=10 * case.study.tokens)
    (path,) = write_best(longer, case.found, tmp_path)
    steps = case.found["ngpt"].at_best[0].planned.config.train.steps
    assert load_recipe(str(path)).train.steps == pytest.approx(10 * steps, rel=0.1)


def test_going_on_trains_nothing_again_and_another_study_is_refused(case):
    assert len(case.executor.ran) == 8
    again = InProcess()
    assert sweep(case.study, case.out, again)["ngpt"].best == case.found["ngpt"].best
    assert again.ran == []
    with pytest.raises(UserError, match="holds another study"):
        sweep(dataclasses.replace(case.study, tokens=800), case.out, again)


def test_optuna_continues_with_what_it_has_asked_for(recipe, tmp_path):
    search = {"optim.lr": {"low": 1e-3, "high": 1e-1, "log": True}}
    study = study_of(
        recipe, method="optuna", trials=3, search=search, seeds=[0], run={"workers": 1}
    )
    broken = InProcess(broken=["trial 1"])
    found = sweep(study, tmp_path / "out", broken)["ngpt"]
    assert [trial.status for trial in found.trials] == ["finished", "failed", "finished"]
    assert [name for name in broken.ran if "trial" in name] == [
        f"ngpt trial {number} #100" for number in (0, 1, 2)
    ]
    assert len(failures({"ngpt": found})) == 1
    asked = json.loads((tmp_path / "out/runs/ngpt/asked.json").read_text())
    corrected = InProcess()
    again = sweep(study, tmp_path / "out", corrected)["ngpt"]
    assert corrected.ran[0] == "ngpt trial 1 #100"
    assert [trial.params for trial in again.trials] == asked["points"]
    assert again.trials[::2] == found.trials[::2]
    assert again.trials[1].status == "finished"


def test_points_that_optuna_gave_for_another_search_are_refused(recipe, tmp_path):
    wide, narrow = (
        study_of(
            recipe,
            method="optuna",
            trials=1,
            search={"optim.lr": {"low": 1e-3, "high": high}},
            seeds=[0],
        )
        for high in (1e-1, 2e-3)
    )
    sweep(wide, tmp_path / "out", InProcess())
    (tmp_path / "out/study.toml").unlink()
    with pytest.raises(UserError, match=r"runs.ngpt holds trials of another search: delete it"):
        sweep(narrow, tmp_path / "out", InProcess())


def test_values_that_make_no_model_are_told_before_anything_is_made(recipe, tmp_path):
    study = study_of(recipe, method="random", trials=2, search={"model.n_heads": [1, 2, 3]})
    with pytest.raises(UserError, match="n_heads 3"):
        sweep(study, tmp_path / "out", InProcess())
    assert not (tmp_path / "out").exists()


def test_figures_of_runs_without_bits_per_byte_are_in_nats(case):
    record = dataclasses.replace(case.found["ngpt"].best.records[0], bits_per_byte=None)
    nats = dataclasses.replace(case.found["ngpt"].best, records=[record])
    assert (measure(case.found["ngpt"].best), measure(nats)) == ("bits_per_byte", "loss")
    run = {"loss": 2.5, "bits_per_byte": None, "status": "finished"}
    arm = {"measure": "loss", "reported": {"as_is": {"0": run}, "best": {}, "difference": None}}
    assert reported(arm) == ["validation, the recipe as it is: 2.5000 nats/token (2.5000)"]


class Obedient(InProcess):
    """Pretends to train: each run writes bad evaluations, and stops when it is asked to."""

    def poll(self) -> bool:
        for state in self.waiting:
            if state.stop is not None:
                state.end(75)
            elif state.status == "waiting":
                write(state.job.out, 9.0)
                state.status = "running"
        self.waiting = [state for state in self.waiting if state.status == "running"]
        return bool(self.waiting)


@pytest.mark.parametrize("method", ["random", "optuna"])
def test_more_or_fewer_trials_of_the_same_search_reuse_its_runs(recipe, tmp_path, method):
    """As write_record advises it: without study.toml the runs of both studies are reused."""
    search = {"optim.lr": {"low": 1e-3, "high": 1e-1, "log": True}}
    found = {}
    for trials in (2, 3, 1):
        study = study_of(recipe, method=method, trials=trials, search=search, seeds=[0])
        swept = sweep(study, tmp_path / "out", InProcess())["ngpt"]
        found[trials] = [trial.params for trial in swept.trials]
        (tmp_path / "out/study.toml").unlink()
    assert {trials: len(points) for trials, points in found.items()} == {1: 1, 2: 2, 3: 3}
    assert found[3][:2] == found[2]
    other = dataclasses.replace(study, search_seed=1)
    with pytest.raises(UserError, match="holds trials of another search"):
        sweep(other, tmp_path / "out", InProcess())


def test_points_of_a_range_are_of_a_grid_only(recipe):
    """Else the ends of what was drawn would be no edges: the range's own are never drawn."""
    search = {"optim.lr": {"low": 1e-3, "high": 1e-1, "log": True, "points": 3}}
    grid = study_of(recipe, search=search)
    assert [choice.points for choice in grid.space.values()] == [3]
    drawn = study_of(recipe, search=search, method="random", trials=2)
    assert [choice.points for choice in drawn.space.values()] == [None]


def write(run: Path, figure: float) -> None:
    """Three evaluations."""
    run.mkdir(parents=True)
    found = {"val_loss": figure, "val_bits_per_byte": figure}
    lines = "".join(json.dumps({"step": step} | found) + "\n" for step in (1, 2, 3))
    (run / "metrics.jsonl").write_text(lines)


def test_a_trial_that_was_stopped_early_is_never_a_result(case, tmp_path):
    study = dataclasses.replace(
        case.study,
        stop=dataclasses.replace(case.study.stop, rule="median", evaluations=6, others=1),
    )
    (run,) = trial_runs(study, tmp_path, "ngpt", 9, {"optim.lr": 0.1, "model.alpha.init": 0.05})
    assert run.config.train.eval_every == 1
    write(tmp_path / "rival", 3.0)
    rule = MedianRule(study.stop, {run.folder: [tmp_path / "rival"]})
    (record,) = execute([run], Obedient(), rule)
    assert record.status == "stopped"
    assert "worse than the median of the others there" in str(record.error)
    assert record.bits_per_byte is None
    assert Trial(9, {}, [record]).figure is None
    executor = InProcess()
    assert execute([run], executor)[0].status == "stopped"
    assert executor.ran == []


def test_importance_is_what_a_key_explains():
    space = study_of("quickstart/ngpt").space
    trials = [
        FakeTrial({"optim.lr": lr, "model.alpha.init": init}, lr + noise)
        for lr in (1.0, 2.0, 3.0)
        for init, noise in ((0.05, 0.01), (0.5, -0.01))
    ]
    shares = importance(space, trials)
    assert shares["optim.lr"] > 0.99
    assert shares["model.alpha.init"] == 0
    assert importance(space, trials[:2]) == {}
    assert set(importance(space, trials[:5])) == {"model.alpha.init"}


def test_importance_needs_two_trials_of_a_value_on_average():
    space = {"k": Choices(("a", "b"))}
    a = [FakeTrial({"k": "a"}, figure) for figure in (1.0, 1.1, 0.9)]
    b = FakeTrial({"k": "b"}, 3.0)
    # Sums of squares: 3.02 in total, 0.02 within the values with 2 degrees of freedom.
    assert importance(space, [*a, b]) == {"k": pytest.approx((3.02 - 0.02 - 0.01) / 3.02)}
    assert importance(space, [*a[:2], b]) == {}


@dataclasses.dataclass
class FakeTrial:
    params: dict
    figure: float


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"search": {}}, "names no key"),
        ({"tokens": 0}, "must be at least 1"),
        ({"search_seed": 2**32}, "'search_seed' must be from 0 to 4294967295"),
        ({"search_seed": -1}, "'search_seed' must be from 0 to 4294967295"),
        ({"trials": 3}, "a grid tries every combination, here 4"),
        ({"method": "random"}, "needs 'trials'"),
        ({"method": "bayes"}, "must be one of grid, random, optuna"),
        ({"tune": {"points": 5}}, "a sweep takes 'fraction' and 'seeds' of .tune. only"),
        ({"search": {"train.steps": [1, 2]}}, "cannot be searched"),
        ({"search": {"train.eval_tokens": [64, 128]}}, "trials would be scored on other text"),
        ({"search": {"data.val_fraction": [0.1, 0.2]}}, "trials would be scored on other text"),
        ({"stop": {"rule": "halving"}}, "must be one of none, median"),
        ({"set": {"optim.lr": 1.0}}, "belongs in `lr` of an arm"),
    ],
)
def test_mistakes_are_told(changes, line):
    with pytest.raises(UserError, match=line):
        study_of("quickstart/ngpt", **changes)


def test_a_key_that_the_recipe_lacks_is_told_before_anything_is_made(recipe, tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_text(
        f'tokens = 400\n[arms]\nngpt = "{recipe}"\n[search]\n"model.alfa.init" = [1.0, 2.0]\n'
    )
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "unknown key 'model.alfa'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_report_s_page_has_every_trial(case):
    write_study(KIND, case.study, case.found, case.out)
    page = page_of(case.out)
    assert page.answer.startswith("ngpt does best with ")
    assert "95% interval" in page.answer or "one seed" in page.answer
    trials = case.document["arms"]["ngpt"]["trials"]
    finished = sorted(t["figure"] for t in trials if t["figure"] is not None)
    for figure in page.figures():
        if figure.name.startswith("trials-"):
            assert sorted(figure.series[0].y) == pytest.approx(finished, rel=1e-5)
    assert "loss" in {figure.name for figure in page.figures()}


def test_tokenizers_of_which_one_loses_text_are_not_compared(recipe, tmp_path):
    """Its trials have no bits per byte, so they would be judged by nats per token."""
    lossy = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    lossy.pre_tokenizer = pre_tokenizers.Whitespace()
    lossy.save(str(tmp_path / "lossy.json"))
    search = {"data.tokenizer": ["bytes", str(tmp_path / "lossy.json")]}
    with pytest.raises(UserError, match=r"lossy\.json: its tokenizer loses text"):
        sweep(study_of(recipe, search=search), tmp_path / "out", InProcess())
