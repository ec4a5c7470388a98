"""A table trained at a toy size in this process: its rates, its comparison, its folder."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
from inprocess import InProcess
from rich.console import Console

from unitsphere.cli import main
from unitsphere.cli.study import setting
from unitsphere.errors import UserError
from unitsphere.report.kinds.ablate import changes_table, flags, interval, notes, printed
from unitsphere.report.registry import page_of
from unitsphere.report.render.text import rich_table
from unitsphere.studies.ablate import (
    KIND,
    Ablation,
    ablate,
    ablation_findings,
    ablation_study,
    change_of,
    document,
    failures,
)
from unitsphere.studies.core.kind import write_study
from unitsphere.studies.core.spec import load_study
from unitsphere.studies.tables import agreement, load_table
from unitsphere.training.load import load_run

TOY = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "data.context": 16,
    "data.tokenizer": "bytes",
    "data.val_fraction": 0.3,
    "train.batch_tokens": 64,
    "train.device": "cpu",
}


@dataclasses.dataclass
class Case:
    study: object
    out: Path
    executor: InProcess
    found: Ablation
    document: dict


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("data")
    lines = [f'{{"text": "the {n} brown foxes jump over {n} dogs"}}\n' for n in range(30)]
    (folder / "text.jsonl").write_text("".join(lines))
    return TOY | {"data.source": str(folder / "text.jsonl"), "data.cache": str(folder / "cache")}


@pytest.fixture(scope="module")
def case(toy, tmp_path_factory) -> Case:
    out = tmp_path_factory.mktemp("ablate") / "out"
    study = ablation_study(
        "normformer-table5", "tiny", 640, rows=["06"], settings=toy, seeds=(0, 1)
    )
    study = dataclasses.replace(study, tune=dataclasses.replace(study.tune, points=2, growths=0))
    executor = InProcess()
    found = ablate(study, out, executor)
    return Case(study, out, executor, found, {"kind": KIND.name, **document(study, found)})


def test_rows_are_trained_in_turn_seed_by_seed(case):
    final = [name.split() for name in case.executor.ran if not name.endswith("tune")]
    assert [words[-1] for words in final] == ["#0"] * 3 + ["#1"] * 3
    assert [words[0] for words in final] == 2 * list(case.study.arms)


def test_one_rate_is_tuned_and_every_row_has_its_multiple(case):
    assert case.study.rates == "shared"
    tuning = [name for name in case.executor.ran if name.endswith("tune")]
    assert len(tuning) == 2
    assert all(name.startswith("03-baseline-lr-3e-3 ") for name in tuning)
    best = case.found.rates["03-baseline-lr-3e-3"].lr
    assert best in (0.005, 0.01)
    double = case.found.rates["05-baseline-lr-6e-3"].lr
    assert double == pytest.approx(2 * best)
    runs = case.found.records["06-normformer-lr-6e-3"]
    assert sorted(runs) == [0, 1]
    config = runs[1].planned.config
    assert (config.optim.lr, config.train.seed) == (double, 1)
    assert config.train.steps == round(0.925 * 640 / 64)
    assert config.model.vocab_size == 256
    assert config.data.source.endswith("text.jsonl")


def test_the_document_has_the_papers_figures_and_ours(case):
    rows = {row["name"]: row for row in case.document["rows"]}
    assert list(rows) == ["03-baseline-lr-3e-3", "05-baseline-lr-6e-3", "06-normformer-lr-6e-3"]
    row, base = rows["06-normformer-lr-6e-3"], rows["05-baseline-lr-6e-3"]
    assert row["against"] == "05-baseline-lr-6e-3"
    assert row["paper"]["perplexity"] == 16.22
    assert row["paper"]["change"] == pytest.approx(100 * (16.22 / 16.58 - 1))
    gap = row["loss"] - base["loss"]
    assert row["change"]["mean"] == pytest.approx(100 * math.expm1(gap))
    assert row["change"]["low"] < row["change"]["mean"] < row["change"]["high"]
    assert row["change"]["seeds"] == 2
    assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert base["against"] is base["change"] is base["sign"] is None
    assert set(rows["03-baseline-lr-3e-3"]["rates_tried"]) == {"0.005", "0.01"}
    assert rows["03-baseline-lr-3e-3"]["lr_at_edge"] is True


def test_table_notes_and_files(case):
    console = Console(width=80)
    with console.capture() as rendered:
        table = changes_table(case.document)
        console.print(rich_table(table.columns[:5], [row[:5] for row in table.rows]))
    text = rendered.get()
    assert max(map(len, text.splitlines())) <= 80
    assert "NormFormer, lr 0.006" in text
    assert "-2.17" in text
    said = " ".join([*notes(case.document), *flags(case.document)])
    assert "one rate for all rows, tuned on row 03-baseline-lr-3e-3" in said
    assert "is at the edge of those tried" in said
    files = write_study(KIND, case.study, case.found, case.out).files
    assert json.loads(files[0].read_text()) == case.document
    assert "| NormFormer, lr 0.006 | -2.17 |" in files[1].read_text()
    assert "arXiv 2110.09456, Table 5" in files[1].read_text()


def test_going_on_trains_nothing_again_and_the_record_is_the_study(case):
    again = InProcess()
    assert ablate(case.study, case.out, again) == case.found
    assert again.ran == []
    record = load_study(type(case.study), case.out / "study.toml")
    assert ablate(record, case.out, again) == case.found
    with pytest.raises(UserError, match="holds another study"):
        ablate(dataclasses.replace(case.study, tokens=1280), case.out, again)


def test_a_failed_row_is_shown_and_ends_no_other(toy, tmp_path):
    study = ablation_study(
        "ngpt-table6", "tiny", 128, "given", settings=toy | {"model.n_heads": 1}, seeds=(0,)
    )
    found = ablate(study, tmp_path / "out", InProcess(broken=["1-no-qk-norm"]))
    made = document(study, found)
    assert failures(found) == ["1-no-qk-norm seed 0: the disk is full"]
    signs = {row["name"]: row["sign"] for row in made["rows"]}
    assert signs == {"0-baseline": None, "1-no-qk-norm": "not finished", "2-slerp": "one seed"}
    said = " ".join([*notes(made), *flags(made)])
    assert "1-no-qk-norm, seed 0, failed: the disk is full" in said
    assert "Time per step, 2) SLERP in place of LERP: paper +11%" in said
    assert "one seed, so no spread" in said
    about = "Ours: 2 layers of 64: to try the command, not to draw conclusions; α starts at 0.05"
    assert about in said
    assert "as in the paper; not the size's: model.d_model " in said


def test_only_the_intervals_that_there_are_may_miss():
    """A row that is not finished, or that one seed finished, has none."""
    known = {"mean": 1.0, "low": 0.5, "high": 1.5, "seeds": 2}
    lone = known | {"low": None, "high": None, "seeds": 1}
    row = {"against": "first", "paper": {"seconds_a_step": None}, "seconds_a_step": None}
    told = {"measure": "loss", "seeds": [0, 1], "protocol": "", "about": "", "tokens": 64}
    told |= {"rates": {"how": "given", "tuned_on": "first"}, "timing": ""}
    told["rows"] = [row | {"change": change} for change in (None, known, known, lone)]
    said = [line for line in notes(told) if "expected to miss" in line]
    assert said == ["Of 2 intervals of 95%, 0.1 are expected to miss by chance."]


def test_learned_scales_stand_beside_the_paper_s(toy, tmp_path):
    settings = toy | {"model.n_heads": 1, "model.n_layers": 2}
    study = ablation_study(
        "ngpt-table5", "tiny", 128, "given", ["05", "09"], settings=settings, seeds=(0, 1)
    )
    found = ablate(study, tmp_path / "out", InProcess())
    made = document(study, found)
    rows = {row["name"]: row["means"] for row in made["rows"]}
    assert rows["05-alpha-scalar"]["alpha_A"]["paper"] == 0.30
    assert rows["09-s_qk-fixed"]["s_qk"] == {"paper": 1.0, "ours": 1.0}
    wanted = []
    for record in found.records["05-alpha-scalar"].values():
        model = load_run(record.planned.folder, device="cpu").model
        wanted += [abs(block.alpha_A()).item() for block in model.blocks]
    assert rows["05-alpha-scalar"]["alpha_A"]["ours"] == pytest.approx(sum(wanted) / 4)
    ours = rows["05-alpha-scalar"]["alpha_A"]["ours"]
    page = write_study(KIND, study, found, tmp_path).files[1].read_text()
    assert "| mean: ours (paper's) | s_qk | s_u | s_nu | s_z | alpha_A | alpha_M |" in page
    assert f"{printed(ours)} (0.30)" in page


def test_failed_tuning_runs_are_shown_and_the_exit_status_tells(toy, tmp_path):
    study = ablation_study("ngpt-table6", "tiny", 128, settings=toy, seeds=(0,))
    study = dataclasses.replace(study, tune=dataclasses.replace(study.tune, points=2, growths=0))
    found = ablate(study, tmp_path / "out", InProcess(broken=["0-baseline"]))
    made = document(study, found)
    assert {row["lr"] for row in made["rows"]} == {None}
    assert len(failures(found)) == 2
    assert all(line.endswith("tune: the disk is full") for line in failures(found))
    assert f"A tuning run failed, and its rate was left out: {failures(found)[0]}" in flags(made)


def test_rows_that_are_not_alike_are_refused_by_name_unless_allowed(toy, tmp_path):
    study = ablation_study("ngpt-table6", "tiny", 128, "given", settings=toy, seeds=(0,))
    arms = dict(study.arms)
    arms["2-slerp"].set["data.context"] = 32
    with pytest.raises(UserError, match=r"unfair: context: 2-slerp and 0-baseline differ"):
        ablate(study, tmp_path / "out", InProcess())
    constant = ablation_study(
        "ngpt-table6", "tiny", 128, settings=toy | {"schedule.kind": "constant"}
    )
    with pytest.raises(UserError, match="unfair: un-annealed: "):
        ablate(constant, tmp_path / "out", InProcess())
    assert not (tmp_path / "out").exists()
    (flag,) = ablation_findings(dataclasses.replace(study, allow=["context"]))
    assert flag.name == "context"


def test_each_row_may_have_its_own_rate(toy, tmp_path):
    study = ablation_study("ngpt-table6", "tiny", 128, "each", settings=toy, seeds=(0,))
    study = dataclasses.replace(study, tune=dataclasses.replace(study.tune, points=2, growths=0))
    executor = InProcess()
    ablate(study, tmp_path / "out", executor)
    assert sum(name.endswith("tune") for name in executor.ran) == 6


@pytest.mark.parametrize(
    ("paper", "low", "high", "sign"),
    [
        (-2.0, -3.0, -1.0, "same"),
        (2.0, 0.1, 3.0, "same"),
        (-2.0, 0.1, 3.0, "opposite"),
        (2.0, -3.0, -0.1, "opposite"),
        (2.0, -0.1, 3.0, "within noise"),
        (0.0, -0.1, 3.0, "within noise"),
        (0.0, 0.1, 3.0, "worse"),
        (0.0, -3.0, -0.1, "better"),
        (2.0, None, None, "one seed"),
    ],
)
def test_agreement_is_of_the_sign_beyond_the_noise(paper, low, high, sign):
    assert agreement(paper, {"mean": 1.0, "low": low, "high": high, "seeds": 3}) == sign
    assert agreement(paper, None) == "not finished"


def test_changes_pair_the_seeds_that_finished_both(case):
    table = load_table("normformer-table5")
    row, other = table.row("06-normformer-lr-6e-3"), table.row("05-baseline-lr-6e-3")
    records = {name: dict(found) for name, found in case.found.records.items()}
    lost = dataclasses.replace(records[other.name][0], status="diverged", loss=None)
    records[other.name][0] = lost
    change = change_of(records[row.name], records[other.name], "loss")
    own, base = (records[r.name][1].loss for r in (row, other))
    assert change["mean"] == pytest.approx(100 * (own / base - 1))
    assert (change["seeds"], change["low"]) == (1, None)
    assert interval(change) == ""


def test_a_perplexity_that_no_float_holds(case, tmp_path):
    records = {name: dict(found) for name, found in case.found.records.items()}
    (row,) = (name for name in records if name.startswith("06-"))
    lost = {s: dataclasses.replace(r, loss=2e4 + s) for s, r in records[row].items()}
    found = dataclasses.replace(case.found, records=records | {row: lost})
    written = write_study(KIND, case.study, found, tmp_path)
    (shown,) = (r for r in written.document["rows"] if r["name"] == row)
    assert shown["perplexity"] == math.inf
    assert shown["change"]["low"] > 1e300
    assert page_of(tmp_path).answer == written.page.answer


def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    study = ablation_study("ngpt-table6", "tiny")
    for words, line in [
        (["ngpt-table9"], "unknown table 'ngpt-table9'"),
        (["ngpt-table6", "--size", "huge"], "unknown size 'huge'"),
        (["normformer-table5", "--rates", "each"], "rows that differ in their rates"),
        (["ngpt-table6", "--rows", "7"], "unknown row '7'"),
        (["ngpt-table6", "--set", "model.layers"], "is not KEY=VALUE"),
        (["ngpt-table6", "--set", "optim.lr=1", "--set", "optim.lr=2"], "--set has optim.lr twice"),
        (["ngpt-table6", "--set", "model.n_layer=3"], "unknown key 'model.n_layer'"),
        (["ngpt-table6", "--set", "optim.lr=3.0"], "belongs in `lr` of an arm"),
        (["study.toml", "--size", "tiny"], "leave --size out"),
        (["ngpt-table6", "--tokens", "0"], "--tokens must be at least 1"),
    ]:
        assert main(["ablate", *words]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    arms = {name: arm for name, arm in study.arms.items() if name != "2-slerp"}
    with pytest.raises(UserError, match="'arms' has no 2-slerp"):
        dataclasses.replace(study, arms=arms)


def test_settings_are_read_as_toml():
    assert setting("model.n_layers=3") == ("model.n_layers", 3)
    assert setting("schedule.kind=linear") == ("schedule.kind", "linear")
    assert setting("model.qk_norm=false") == ("model.qk_norm", False)


def test_the_report_s_page_has_ours_beside_the_paper_s(case):
    write_study(KIND, case.study, case.found, case.out)
    page = page_of(case.out)
    assert page.answer.startswith(
        f"Of {sum(r['against'] is not None for r in case.document['rows'])} rows"
    )
    figure = next(f for f in page.figures() if f.name == "changes")
    own = [r["change"]["mean"] for r in case.document["rows"] if r["change"]]
    assert figure.series[0].y == pytest.approx(own, rel=1e-4)
    assert figure.series[0].low is not None
    curves = next(f for f in page.figures() if f.name == "loss")
    assert len(curves.series) == sum(len(r["runs"]) for r in case.document["rows"])


def test_the_page_leaves_out_what_an_earlier_study_left_in_the_folder(case, tmp_path):
    out = shutil.copytree(case.out, tmp_path / "out")
    row = case.document["rows"][0]
    run = out / "runs" / row["name"] / str(row["tokens"]) / f"lr-{row['lr']:g}-seed-0"
    for other in (run.with_name("lr-9-seed-0"), run.parents[1] / "64" / run.name):
        shutil.copytree(run, other)
    written = write_study(KIND, case.study, case.found, out)
    curves = next(f for f in written.page.figures() if f.name == "loss")
    names = [f"{row['name']} {run.name[:-1]}{seed}" for seed in (0, 1)]
    assert [line.name for line in curves.series if line.legend == row["name"]] == names
