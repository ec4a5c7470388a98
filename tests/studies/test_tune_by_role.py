"""The search of start and rates by role: its points, its folders, and what it writes."""

import importlib.util
import sys
from pathlib import Path

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.studies.core.plan import arm_config

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def tune():
    spec = importlib.util.spec_from_file_location("tune_by_role", FOLDER / "tune_by_role.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune_by_role"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune_by_role"]


def test_others_are_the_rates_of_embedding_head_and_scales(tune):
    point = {"lr": 4e-3, "others": 3, "optim.weight_decay": 0.3}
    rates = {f"optim.rates.{role}": 3.0 for role in ("embedding", "head", "scale")}
    assert tune.keys_of(point) == {**rates, "optim.weight_decay": 0.3}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("tune-*.toml")), ids=lambda path: path.stem)
def test_every_point_that_is_kept_can_be_run(tune, path):
    study, points = tune.read(path)
    assert {arm for arm, _, _ in points} == set(study.arms)
    for arm in study.arms:
        arm_config(study, arm)


def test_points_are_run_once_ranked_and_written(tune, tmp_path, monkeypatch):
    executor = InProcess()
    monkeypatch.setattr(tune, "Local", lambda workers: executor)
    study = tmp_path / "tune-tiny.toml"
    study.write_text(
        f'[arms]\nngpt = "{recipes(tmp_path)[1]}"\n'
        "[tune]\nseeds = [100]\nfraction = 0.3\n"
        "[points.ngpt]\n"
        "384 = [{ lr = 2e-2, others = 1 }, { lr = 1e-2, others = 2, seeds = [0, 1] }]\n"
    )
    argv = [str(study), "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert tune.main(argv) == 0
    rows = read_json(tmp_path / "results" / "tune-tiny.json")["arms"]["ngpt"]["384"]
    assert {row["point"]["others"] for row in rows} == {1, 2}
    assert rows[0]["loss"] < rows[1]["loss"]
    page = (tmp_path / "results" / "tune-tiny.md").read_text(encoding="utf-8")
    for row in rows:
        values = row["loss_by_seed"]
        assert len(values) == (2 if row["point"]["others"] == 2 else 1)
        assert row["loss"] == pytest.approx(sum(values) / len(values))
        assert f"others {row['point']['others']} | {row['loss']:.4f} " in page
    assert len(executor.ran) == 3
    assert tune.main(argv) == 0
    assert len(executor.ran) == 3
