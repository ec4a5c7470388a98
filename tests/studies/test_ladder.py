"""A ladder whose runs are made up from known laws gives these laws back; a toy one trains."""

import dataclasses
import json
import math
import shutil

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.report.document import Text
from unitsphere.report.kinds.ladder import ladder_tables
from unitsphere.report.registry import page_of
from unitsphere.studies import ladder as module
from unitsphere.studies.core import tune
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.kind import write_study
from unitsphere.studies.core.spec import ArmSpec, Tune, load_study, study_from
from unitsphere.studies.ladder import LadderStudy, ladder
from unitsphere.studies.ladder_results import KIND, document, findings
from unitsphere.training.forecast import size_of

BATCHES = [96, 192, 384]
RATE = {"gpt": (1.0, -0.4), "ngpt": (4.0, -0.5)}
BATCH = (1.2, 0.5)
COMPUTES = [1.5e9, 3e9, 6e9, 1.2e10]


def size(d_model: int) -> dict[str, object]:
    return {"model": {"d_model": d_model}, "data.context": 16}


SIZES = {f"d{d}": size(d) for d in (16, 24, 32, 48)}


def made_up(study: LadderStudy, planned, broken: tuple[str, ...] = ()) -> Record:
    """What a run would come to by the laws above, without training it."""
    if any(name in planned.name for name in broken):
        return Record(planned, "failed", error="no disk")
    n, batch = size_of(planned.config).parameters, planned.config.train.batch_tokens
    if "tune" not in planned.name:
        # L = 1 + N^−½ + D^−½: at a compute C the lowest is at N = D = √(C/6).
        return Record(planned, "finished", loss=1 + n**-0.5 + planned.tokens**-0.5)
    coefficient, exponent = RATE[planned.name.partition(".")[0]]
    octaves = math.log2(batch / (BATCH[0] * n ** BATCH[1]))
    off = math.log2(planned.lr / (coefficient * n**exponent)) - octaves / 2
    if off > 3:
        return Record(planned, "diverged", error="step 1: loss nan, gradient norm nan")
    return Record(planned, "finished", loss=2 + n**-0.3 + 0.05 * octaves**2 + 0.1 * off**2)


def study_in(folder, **changes) -> LadderStudy:
    gpt, ngpt, _ = recipes(folder)
    settings = {
        "arms": {"gpt": ArmSpec(gpt, lr=0.02), "ngpt": ArmSpec(ngpt, lr=0.03)},
        "sizes": SIZES,
        "batches": BATCHES,
        "computes": COMPUTES,
        "next": [200_000, 400_000],
        "seeds": [0, 1],
    }
    return LadderStudy(**(settings | changes))


def climb(study, out, monkeypatch, broken=()):
    """The findings of the study with made-up runs."""
    return findings(study, *climb_runs(study, out, monkeypatch, broken))


def climb_runs(study, out, monkeypatch, broken=()):
    """The ladder with made-up runs."""

    def execute(planned, executor, later=()):
        return [made_up(study, run, broken) for run in planned]

    monkeypatch.setattr(tune, "execute", execute)
    monkeypatch.setattr(module, "execute", execute)
    return ladder(study, out, InProcess())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The findings of a ladder with made-up runs, and its folder."""
    folder = tmp_path_factory.mktemp("ladder")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return climb(study_in(folder), folder / "out", monkeypatch), folder / "out"


def test_the_laws_of_rate_and_batch_come_back(found):
    figures = document(found[0])
    for arm, (coefficient, exponent) in RATE.items():
        laws = figures["arms"][arm]["laws"]
        assert laws["lr"]["exponent"] == pytest.approx(exponent, abs=0.02)
        assert laws["batch"]["exponent"] == pytest.approx(BATCH[1], abs=0.02)
        for each in figures["arms"][arm]["suggestions"]:
            n = each["parameters"]
            assert each["lr"] == pytest.approx(coefficient * n**exponent, rel=0.05)
            assert each["batch"] == pytest.approx(BATCH[0] * n ** BATCH[1], rel=0.05)
            assert each["lr_interval"][0] <= each["lr"] <= each["lr_interval"][1]
        assert [s["parameters"] for s in figures["arms"][arm]["suggestions"]] == [200_000, 400_000]


def test_best_size_data_and_loss_come_back(found):
    figures = document(found[0])
    laws = figures["arms"]["gpt"]["laws"]
    assert laws["parameters"]["exponent"] == pytest.approx(0.5, abs=0.03)
    assert laws["tokens"]["exponent"] == pytest.approx(0.5, abs=0.03)
    for best in figures["arms"]["gpt"]["allocations"]:
        assert best["parameters"] == pytest.approx(math.sqrt(best["compute"] / 6), rel=0.1)
        assert best["loss"] == pytest.approx(1 + 2 * (best["compute"] / 6) ** -0.25, rel=1e-3)
    for spent in figures["arms"]["gpt"]["computes"]:
        assert spent["runs"][0]["tokens"] * spent["parameters"] * 6 == pytest.approx(
            spent["compute"], rel=0.05
        )
        assert spent["batch"] % 16 == 0
        assert [run["seed"] for run in spent["runs"]] == [0, 1]


def test_two_arms_exponents_are_tested(found):
    tests = {test["law"]: test for test in document(found[0])["tests"]}
    assert set(tests) == {"lr", "batch", "loss", "parameters", "tokens"}
    assert tests["lr"]["p"] < 1e-4
    assert tests["lr"]["difference"] == pytest.approx(0.1, abs=0.03)
    assert tests["batch"]["p"] > 0.01


def test_the_record_is_the_study(found):
    study = found[0].study
    assert load_study(LadderStudy, found[1] / "study.toml") == study


def test_what_lies_at_an_edge_or_failed_is_flagged_and_left_out(tmp_path, monkeypatch):
    study = study_in(
        tmp_path,
        batches=[192, 384, 768],
        computes=[6e9, 1e11],
        arms={"gpt": study_in(tmp_path).arms["gpt"]},
        tune=Tune(growths=0),
        seeds=[0],
    )
    broken = ("gpt.d24.384 ", "gpt.d48")
    figures = document(climb(study, tmp_path / "out", monkeypatch, broken))
    flags = {flag["name"]: flag["text"] for flag in figures["flags"]}
    assert {"edge", "failed", "few-sizes", "no-optimum", "one-seed"} <= set(flags)
    assert flags["no-optimum"] == "gpt d48: every run of the grid diverged or failed"
    sizes = {size["size"]: size for size in figures["arms"]["gpt"]["sizes"]}
    assert sizes["d16"]["batch_edge"] == "low"
    assert sizes["d48"]["batch"] is None
    law = figures["arms"]["gpt"]["laws"]["lr"]
    within = [s for s in sizes.values() if s["batch"] and not (s["batch_edge"] or s["lr_edge"])]
    assert (law["points"] if law else 0) == (len(within) if len(within) > 1 else 0)
    edges = [best["edge"] for best in figures["arms"]["gpt"]["allocations"]]
    assert edges[-1] == "high"
    write_study(KIND, study, climb(study, tmp_path / "out", monkeypatch, broken), tmp_path)


def toy(folder) -> LadderStudy:
    """One size, three batches and rates, one compute: runs of 10 to 30 steps."""
    return study_in(
        folder,
        arms={"gpt": study_in(folder).arms["gpt"]},
        sizes={"s": size(8)},
        batches=[32, 48, 64],
        tokens_per_parameter=0.12,
        computes=[6e7],
        seeds=[0],
        tune=Tune(growths=0),
        set={"train.save_every": 0},
    )


def test_a_toy_ladder_trains_and_continues(tmp_path):
    study, executor = toy(tmp_path), InProcess(stop=3)
    with pytest.raises(BaseException, match="the same command resumes"):
        ladder(study, tmp_path / "out", executor)
    executor = InProcess()
    rungs, spent = ladder(study, tmp_path / "out", executor)
    assert len(executor.ran) == 9 + 1 - 3
    assert [rung.optimum.loss < 6 for rung in rungs] == [True]
    assert [s.records[0].status for s in spent] == ["finished"]
    config = read_json(spent[0].records[0].planned.folder / "config.json")
    assert config["train"]["batch_tokens"] == spent[0].batch
    assert config["optim"]["lr"] == spent[0].lr
    again = InProcess()
    rungs_again, spent_again = ladder(study, tmp_path / "out", again)
    assert rungs_again[0].optimum == rungs[0].optimum
    assert spent_again[0].records == spent[0].records
    assert again.ran == []
    write_study(KIND, study, findings(study, rungs, spent), tmp_path / "out")
    said = [text for section in page_of(tmp_path / "out").sections for text in words(section)]
    assert not any("is not known" in text for text in said)


def words(section) -> list[str]:
    """What stands in a section's texts."""
    return [line for block in section.blocks if isinstance(block, Text) for line in block.lines]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batches": [64, 128]}, "must be at least 3"),
        ({"tune": {"points": 2}}, "must be at least 3"),
        ({"tune": {"budgets": [100]}}, r"tune\.budgets"),
        ({"sizes": {}}, "at least one size"),
        ({"sizes": {"a b": {}}}, "'a b' must have a name"),
        ({"sizes": {"s": {"optim": {"lr": 1.0}}}}, r"sizes\.s\.optim\.lr"),
        ({"set": {"train.batch_tokens": 64}}, r"set\.train\.batch_tokens"),
        ({"computes": [0.0]}, "above 0"),
        ({"computes": [math.inf]}, r"at most 1e\+30"),
        ({"computes": [1e9, 1e9]}, "different numbers"),
        ({"tokens_per_parameter": math.inf}, r"at most 1e\+30"),
        ({"tokens_per_parameter": 1e300}, r"at most 1e\+30"),
        ({"next": [0]}, "'next' must be"),
        ({"size": {}}, "did you mean 'sizes'"),
    ],
)
def test_what_makes_no_ladder_is_refused_by_name(changes, said):
    table = {"arms": {"gpt": "x"}, "sizes": {"s": {}}, "batches": [64, 128, 256]} | changes
    with pytest.raises(UserError, match=said):
        study_from(LadderStudy, table)


def test_a_mistake_in_the_keys_of_a_size_names_arm_and_size(tmp_path):
    study = study_in(tmp_path, sizes=SIZES | {"wrong": {"model": {"d_modl": 16}}})
    with pytest.raises(UserError, match=r"^arm gpt\.wrong\.96: unknown key 'model\.d_modl'"):
        ladder(study, tmp_path / "out", InProcess())


def test_sizes_that_are_not_alike_are_refused_by_name_unless_allowed(tmp_path, monkeypatch):
    name = list(SIZES)[-1]
    sizes = SIZES | {name: {**SIZES[name], "data.context": 32}}
    study = study_in(tmp_path, sizes=sizes)
    with pytest.raises(UserError, match=rf"unfair: context: gpt\.{name} and gpt\..*32 against 16"):
        ladder(study, tmp_path / "out", InProcess())
    assert not (tmp_path / "out").exists()
    allowed = dataclasses.replace(study, allow=["context"])
    figures = document(climb(allowed, tmp_path / "out", monkeypatch))
    assert "context" in [flag["name"] for flag in figures["flags"]]


def test_adam_s_own_rate_goes_with_the_tuned_one_at_the_computes_too(tmp_path, monkeypatch):
    gpt = recipes(tmp_path)[0]
    muon = ArmSpec(gpt, {"optim.name": "muon", "optim.adam_lr": 0.03}, lr=0.02)
    study = study_in(tmp_path, arms={"gpt": muon})
    _, spent = climb_runs(study, tmp_path / "out", monkeypatch)
    configs = [record.planned.config for at in spent for record in at.records]
    assert {config.optim.lr for config in configs} != {0.02}
    for config in configs:
        assert config.optim.adam_lr / config.optim.lr == pytest.approx(1.5, rel=1e-3)


def test_runs_of_too_few_steps_are_refused_before_anything_is_trained(tmp_path):
    study = dataclasses.replace(toy(tmp_path), computes=[1e6])
    with pytest.raises(UserError, match=r"the compute 1e.06 leaves gpt s .* fewer than 10 steps"):
        ladder(study, tmp_path / "out", InProcess())
    assert not (tmp_path / "out").exists()


def test_two_sizes_of_as_many_parameters_are_refused_before_anything_is_trained(tmp_path):
    """The best size at a compute lies between different ones."""
    name = list(SIZES)[-1]
    study = study_in(tmp_path, sizes=SIZES | {"twin": SIZES[name]})
    with pytest.raises(UserError, match=rf"the sizes {name} and twin of gpt have .* both"):
        ladder(study, tmp_path / "out", InProcess())
    assert not (tmp_path / "out").exists()


def test_the_verb_needs_a_file(tmp_path, capsys):
    assert main(["ladder"]) == 2
    assert "ladder needs STUDY" in capsys.readouterr().err
    assert main(["ladder", str(tmp_path / "none.toml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_verb_reports_a_study_and_leaves_its_files(found, tmp_path, capsys, monkeypatch):
    shutil.copy(found[1] / "study.toml", tmp_path / "mine.toml")
    figures, study, out = document(found[0]), found[0].study, found[1]

    def execute(planned, executor, later=()):
        return [made_up(study, run) for run in planned]

    monkeypatch.setattr(module, "execute", execute)
    monkeypatch.setattr(tune, "execute", execute)
    assert main(["ladder", str(tmp_path / "mine.toml"), "--out", str(out), "--workers", "2"]) == 0
    said = capsys.readouterr().out
    assert read_json(out / "results.json")["arms"] == json.loads(json.dumps(figures["arms"]))
    for name in ("grid.png", "optima.png", "scaling.png"):
        assert (out / name).read_bytes()[:4] == b"\x89PNG"
        assert str(out / name) in said
    page, tables = (out / "results.md").read_text(), ladder_tables(figures)
    assert len(tables) == 5
    for table in tables:
        assert table.title in page
        assert table.title in said
        for row in table.rows:
            assert len(row) == len(table.columns)
            assert f"| {' | '.join(row)} |" in page


def test_the_report_s_page_has_laws_and_grids(found):
    findings, out = found
    write_study(KIND, findings.study, findings, out)
    page = page_of(out)
    assert "to the power" in page.answer
    assert "95% intervals" in page.answer
    names = [figure.name for figure in page.figures()]
    assert {"law-lr", "law-batch", "law-loss"} <= set(names)
    assert sum(name.startswith("grid-") for name in names) == len(findings.rungs)
