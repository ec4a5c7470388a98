"""A transfer whose runs are made up from known best rates gives back the gaps and exponents."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_toml
from unitsphere.errors import UserError
from unitsphere.report.document import Table
from unitsphere.report.registry import page_of
from unitsphere.studies.core import tune
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.kind import write_study
from unitsphere.studies.core.spec import ArmSpec, Tune, load_study, study_from
from unitsphere.studies.transfer import KIND, Cells, TransferStudy, least_squares, transfer

EXPONENTS = {"width": -0.5, "depth": -0.25, "tokens": -0.3}
BASE = {"width": 16, "depth": 1, "tokens": 640, "batch_tokens": 64, "lr": 1e-2}
SET = {"optim.transfer": "nu", **{f"optim.base.{key}": value for key, value in BASE.items()}}


def best_rate(width: int, depth: int, tokens: int) -> float:
    sizes = {"width": width, "depth": depth, "tokens": tokens}
    return 1e-2 * math.prod((n / BASE[k]) ** EXPONENTS[k] for k, n in sizes.items())


def made_up(planned, broken: str = "nothing", newer: str = "nothing") -> Record:
    """What a run would come to: a parabola about the best rate of its size.

    newer: part of the names of runs that another commit trained.
    """
    if broken in planned.name:
        return Record(planned, "failed", error="no disk")
    model, train = planned.config.model, planned.config.train
    best = best_rate(model.d_model, model.n_layers, train.steps * train.batch_tokens)
    off = math.log2(planned.lr / best)
    made = {"commit": "b" if newer in planned.name else "a"}
    return Record(planned, "finished", loss=3 + 0.1 * off**2, environment=made)


def study_in(folder: Path, **changes) -> TransferStudy:
    recipe = Path(recipes(folder)[1])  # nGPT's
    recipe.write_text(recipe.read_text().replace("[optim]\nlr = 0.02\n", ""))
    settings = {
        "arms": {"ngpt": ArmSpec(str(recipe))},
        "set": SET,
        "cells": {
            "grid": Cells([16, 32, 64], [1, 2], [640, 2560]),
            "wide": Cells([128], [1], [640]),
        },
        "head_size": 8,
        "tune": Tune(ratio=1.5, growths=8, seeds=[100]),
    }
    return TransferStudy(**(settings | changes))


def found_in(study, folder, monkeypatch, **how):
    def execute(planned, executor, later=()):
        return [made_up(run, **how) for run in planned]

    monkeypatch.setattr(tune, "execute", execute)
    cells = transfer(study, folder / "out", InProcess())
    outcome = write_study(KIND, study, cells, folder / "out")
    return outcome, json.loads((folder / "out/results.json").read_text())


def test_gaps_and_exponents_come_back(tmp_path, monkeypatch):
    study = study_in(tmp_path)
    outcome, found = found_in(study, tmp_path, monkeypatch)
    arm = found["arms"]["ngpt"]
    cells = {(c["width"], c["depth"], c["tokens"]): c for c in arm["cells"]}
    expected = [*itertools.product([16, 32, 64], [1, 2], [640, 2560]), (128, 1, 640)]
    assert set(cells) == set(expected)
    for (width, depth, tokens), cell in cells.items():
        law = 1e-2 * (width / 16) ** -0.75 * (tokens / 640) ** (-1 / 3)
        best = best_rate(width, depth, tokens)
        assert cell["lr"] == pytest.approx(law, rel=5e-3)
        assert cell["best_lr"] == pytest.approx(best, rel=0.05)
        assert cell["gap"] == pytest.approx(0.1 * math.log2(law / best) ** 2, abs=5e-3)
    fits = {fit["size"]: fit for fit in arm["exponents"]}
    laws = {"width": -0.75, "depth": 0.0, "tokens": -1 / 3}
    for name, exponent in EXPONENTS.items():
        fit = fits[name]
        assert fit["value"] == pytest.approx(exponent, abs=0.03)
        assert fit["low"] < fit["value"] < fit["high"]
        assert fit["law"] == pytest.approx(laws[name], abs=0.01)
    inside = [cell for cell in cells.values() if cell["edge"] is None]
    worst = max(inside, key=lambda cell: cell["gap"])
    assert f"at most {worst['gap']:.4f} nats per token above" in outcome.page.answer
    blocks = page_of(tmp_path / "out").sections[0].blocks
    tables = {block.title: block.rows for block in blocks if isinstance(block, Table)}
    assert len(tables["Nats per token at the law's rate and at the best"]) == 13
    assert len(tables["Exponents of the best rates, 95% intervals"]) == 3
    assert load_study(TransferStudy, tmp_path / "out/study.toml") == study


def test_runs_that_fail_and_best_rates_at_an_edge_are_flagged(tmp_path, monkeypatch):
    study = study_in(tmp_path, tune=Tune(ratio=1.1, growths=0, seeds=[100]))
    outcome, found = found_in(study, tmp_path, monkeypatch, broken="ngpt.d32-l1 640 ")
    flags = {flag["name"] for flag in found["flags"]}
    assert flags == {"no-best", "edge", "one-seed"}
    cell = next(c for c in found["arms"]["ngpt"]["cells"] if (c["width"], c["depth"]) == (32, 1))
    assert cell["loss"] is cell["gap"] is cell["best_lr"] is None
    assert len(outcome.failures) == 3
    assert found["arms"]["ngpt"]["exponents"] == []


def test_runs_of_different_code_are_flagged(tmp_path, monkeypatch):
    study = study_in(tmp_path)
    _, found = found_in(study, tmp_path, monkeypatch)
    assert {flag["name"] for flag in found["flags"]} == {"one-seed"}
    _, found = found_in(study, tmp_path, monkeypatch, newer="ngpt.d32-l1 640 ")
    told = {flag["name"]: flag["text"] for flag in found["flags"]}
    assert told.keys() == {"one-seed", "versions"}
    assert told["versions"] == "runs differ in commit: a and b"


def test_an_interval_holds_the_true_exponent_95_times_of_100():
    generator, held = np.random.default_rng(0), 0
    x = np.log([1.0, 2.0, 4.0, 8.0, 16.0])
    X = np.column_stack([np.ones(5), x - x.mean()])
    for _ in range(1000):
        b, margin = least_squares(X, -0.75 * x + 0.1 * generator.standard_normal(5))
        assert margin is not None
        held += abs(b[1] + 0.75) < margin[1]
    assert 930 <= held <= 970


def test_mistakes_are_one_line(tmp_path):
    study = study_in(tmp_path)
    recipe = study.arms["ngpt"].recipe
    for changes, text in (
        ({"set": {}}, "set optim.transfer"),
        ({"arms": {"a": ArmSpec(recipe, lr=1e-2)}}, "'lr' is not for a transfer"),
        ({"arms": {"a": ArmSpec(recipe, {"optim.lr": 1e-2})}}, "sets optim.lr itself"),
        ({"arms": {"a": ArmSpec(recipe, {"model.n_heads": 2})}}, "'arms.a.set.model.n_heads'"),
        ({"set": {**SET, "model.d_model": 32}}, "'set.model.d_model' cannot be set: the cells"),
        ({"cells": {"a": Cells([16], [1], [640, 641])}}, "ngpt.d16-l1 have 10 steps of 64"),
        ({"head_size": 24}, "the width 16 is not divisible by head_size 24"),
        ({"tune": Tune(points=1)}, "tune.points must be at least 3"),
        ({"seeds": [0]}, "'seeds' is not for a transfer, whose runs have tune.seeds"),
        ({"cells": {}}, "'cells' must name at least one table"),
    ):
        with pytest.raises(UserError, match=text):
            transfer(study_in(tmp_path, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_benchmark_s_file_plans_the_issue_s_cells():
    table = read_toml(Path(__file__).parents[2] / "benchmarks/transfer.toml")
    study = study_from(TransferStudy, table)
    assert len(study.sizes()) == 20
    assert set(study.arms) == {"gpt-plus", "gpt-plus-muon", "ngpt", "ngpt-muon"}
