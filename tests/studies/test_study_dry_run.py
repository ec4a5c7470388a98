"""`--dry-run` of every study: runs, hours and disk, counted without training."""

import json
import re
from pathlib import Path

import pytest
from studies.tiny import recipes
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.training.cost import Speed


@pytest.fixture
def arms(tmp_path, monkeypatch, capsys) -> dict[str, str]:
    """Arm -> recipe; a process makes 1e9 operations a second."""
    monkeypatch.setattr("unitsphere.studies.core.kind.speed", lambda *_: Speed(1e9, "pretended"))
    monkeypatch.chdir(tmp_path)
    return {Path(path).stem: path for path in recipes(tmp_path)}


def study(arms: dict[str, str], text: str) -> str:
    """The path of a study's file."""
    lines = [f'{name} = "{path}"' for name, path in arms.items()]
    Path("study.toml").write_text("\n".join([text, "[arms]", *lines]))
    return "study.toml"


COMPARE = """
budgets = [640, 1280]
seeds = [0, 1]
tune.points = 3
run.workers = 2
allow = ["tied-rates"]
"""
SWEEP = """
tokens = 640
seeds = [0, 1]
method = "grid"
search = { "optim.lr" = [1e-3, 1e-2], "model.d_model" = [16, 32] }
"""
LADDER = """
batches = [16, 32, 64]
tokens_per_parameter = 2
computes = [1e9]
seeds = [0]
[sizes]
s = { model = { d_model = 16, n_layers = 1, n_heads = 2 } }
m = { model = { d_model = 32, n_layers = 1, n_heads = 2 } }
"""


def test_compare(arms, capsys):
    path = study(arms, COMPARE)
    before = set(Path().rglob("*"))
    found = printed(capsys, "compare", path, "--dry-run")
    assert found["runs"] == 3 * 2 * (3 + 2)  # arms × budgets × (rates and seeds)
    assert found["may_grow_by"] == 3 * 2 * 4
    assert found["tokens"] == 3 * (640 + 1280) * (3 + 2)
    assert found["hours"] * 2 * 3600 * 1e9 == pytest.approx(found["flops"])
    assert found["finished"] == 0
    assert set(Path().rglob("*")) == before
    assert main(["compare", path, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "30 runs, 2 at a time" in said
    assert "up to 24 more" in said
    assert "(pretended)" in said


@pytest.mark.parametrize(
    ("verb", "text", "runs"),
    [("sweep", SWEEP, 3 * (4 + 2 * 2)), ("ladder", LADDER, 3 * 2 * (3 * 3 + 1))],
)
def test_a_file_s_study(arms, capsys, verb, text, runs):
    assert printed(capsys, verb, study(arms, text), "--dry-run")["runs"] == runs
    assert not Path("runs").exists()


def test_lr_ramp(arms, capsys):
    found = printed(capsys, "lr-ramp", *arms.values(), "--steps", "50", "--dry-run")
    assert found["runs"] == 3 * 3
    assert found["tokens"] == 9 * 50 * 64
    assert not Path("runs").exists()


def test_ablate(arms, capsys):
    found = printed(capsys, "ablate", "ngpt-table6", "--size", "tiny", "--dry-run")
    rows = [part for part in found["parts"] if not part["name"].endswith("tune")]
    tuned = [part for part in found["parts"] if part["name"].endswith("tune")]
    assert {part["runs"] for part in rows} == {3}
    assert len(rows) == 3
    assert found["runs"] == sum(part["runs"] for part in [*rows, *tuned])
    assert not Path("runs").exists()


def test_a_mistake_in_the_study_is_told(arms, capsys):
    path = study(arms, COMPARE + '\nset = { "train.batch" = 1 }')
    assert "train.batch" in refused(capsys, "compare", path, "--dry-run")


def test_what_is_forecast_lies_on_the_disk(arms, capsys):
    """The checkpoints of a finished run, but for what is beside the tensors in its files."""
    argv = ["train", arms["ngpt"], "--out", "run"]
    assert main(argv) == 0
    capsys.readouterr()
    found = printed(capsys, *argv, "--dry-run")
    files = Path("run/checkpoints").rglob("*.safetensors")
    kept = sum(path.stat().st_size for path in files)
    assert found["disk"] == pytest.approx(kept, rel=0.3)
    assert found["total_flops"] == 6 * found["step_flops"]
    # With a digit after the point: a tiny model has less than one, which was shown as 0.
    assert re.match(r"measured here: [\d,]+\.\d GFLOP/s", found["throughput"]["how"])
    assert found["hours"] * found["throughput"]["flops"] * 3600 == pytest.approx(
        found["total_flops"]
    )
    assert json.loads(Path("run/config.json").read_text())["train"]["steps"] == 6


def test_checkpoints_that_only_one_arm_keeps_are_in_its_disk(arms, capsys):
    def disks() -> list[int]:
        parts = printed(capsys, "compare", path, "--dry-run")["parts"]
        return [p["disk"] // p["runs"] for p in parts if p["name"].startswith("gpt 1,280")]

    path = study({"gpt": arms["gpt"], "ngpt": arms["ngpt"]}, COMPARE)
    tuned, reported = disks()
    recipe = f'"{arms["gpt"]}"'
    keeps = f"{{ recipe = {recipe}, set = {{ train = {{ keep_last = 3 }} }} }}"
    Path(path).write_text(Path(path).read_text().replace(recipe, keeps, 1))
    assert disks() == [3 * tuned, 3 * reported]
