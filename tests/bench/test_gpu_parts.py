"""benchmarks/gpu.py: every part at toy size, and what a call that was cut short leaves."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unitsphere.bench import train
from unitsphere.bench.arms import ON_GPU, arm_config
from unitsphere.bench.measure import Ceilings
from unitsphere.cli import bench as bench_cli
from unitsphere.cli import main
from unitsphere.config import read_toml

ROOT = Path(__file__).parents[2]


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


gpu, gpu_page = loaded("gpu"), loaded("gpu_page")


def test_its_paths_are_there():
    assert all((ROOT / path).exists() for paths in gpu.TESTS.values() for path in paths)


@pytest.mark.parametrize("name", gpu.BENCHES)
def test_every_part_is_rehearsed_and_has_a_table(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train, "ceilings", lambda device: Ceilings(1e9, 1e10))
    command = gpu.BENCHES[name].command(rehearse=True)
    assert main(command[3:]) == 0
    result = json.loads(capsys.readouterr().out)
    (tmp_path / f"{name}.json").write_text(
        json.dumps({"part": name, "seconds": 1.0, "result": result})
    )
    page = gpu_page.page(tmp_path)
    assert f"## {name}" in page
    assert page.count("\n|") >= 3


@pytest.mark.parametrize("name", gpu.BENCHES)
def test_the_options_and_arms_of_every_part_are_known(name, monkeypatch, capsys):
    """On a GPU, without computing anything."""
    verbs = ("training", "kernels", "loss", "generate", "optimizers")
    for verb in verbs:
        monkeypatch.setattr(bench_cli, f"run_{verb}", lambda args: (train, vars(args)))
    assert main(gpu.BENCHES[name].command(rehearse=False)[3:]) == 0
    arms = json.loads(capsys.readouterr().out).get("arms", [])
    sizes = dataclasses.replace(ON_GPU, device="cpu")
    for arm in arms:
        assert arm == "llama" or arm_config(arm, sizes).model.d_model == ON_GPU.d_model


def test_the_comparison_is_a_study_of_as_many_tokens_as_there_is_time_for(tmp_path, capsys):
    path = gpu.write_study(tmp_path, 600, None, rehearse=False)
    assert read_toml(path)["budgets"] == [gpu.tokens_for(600, 4)]
    assert main(["compare", str(path), "--out", str(tmp_path / "compare"), "--dry_run"]) == 0
    assert "4 runs" in capsys.readouterr().out


def test_its_tokens_follow_the_time():
    seconds = 4 * (gpu.START_UP + 100)
    assert gpu.tokens_for(seconds, 4) == int(8e6 * 2) // gpu.BATCH * gpu.BATCH
    assert gpu.tokens_for(1, 4) == 16 * gpu.BATCH


def test_a_study_that_was_cut_short_keeps_its_tokens(tmp_path):
    first = gpu.write_study(tmp_path, 600, None, rehearse=True).read_text()
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "study.toml").touch()
    assert gpu.write_study(tmp_path, 60, None, rehearse=False).read_text() == first


def test_each_part_is_written_at_once_and_measured_only_once(tmp_path):
    asked = []

    def one(name, seconds):
        asked.append(name)
        if name == "loss":
            raise gpu.Cut
        if name == "kernels":
            raise subprocess.CalledProcessError(1, ["bench"])
        return {"of": name}

    names = ["tests", "kernels", "loss", "best-0.5b"]
    assert gpu.run_parts(names, 2.4, tmp_path, one) == ["kernels", "loss", "best-0.5b"]
    assert asked == ["tests", "kernels", "loss"]  # 2.5 minutes for the last were not left
    assert json.loads((tmp_path / "tests.json").read_text())["result"] == {"of": "tests"}
    assert gpu.run_parts(names, 9, tmp_path, lambda name, seconds: {}) == []
    assert json.loads((tmp_path / "tests.json").read_text())["result"] == {"of": "tests"}


def test_training_arms_end_before_their_part_is_cut_off(tmp_path, monkeypatch, capsys):
    commands = []

    def answer(command, log, seconds, fine):
        commands.append(command)
        return json.dumps({"left": {"ngpt": "there was no time for it"}})

    monkeypatch.setattr(gpu, "output_of", answer)
    options = gpu.parse(["--rehearse"])
    names = ["step-0.5b", "loss"]
    measured = gpu.run_parts(
        names, 99, tmp_path, lambda name, seconds: gpu.measure(name, tmp_path, seconds, options)
    )
    assert measured == []
    minutes = gpu.PATIENCE * gpu.ESTIMATES["step-0.5b"] * gpu.STARTS
    assert commands[0][-2:] == ["--minutes", f"{minutes:.2f}"]
    assert "--minutes" not in commands[1]
    assert "step-0.5b: without ngpt: there was no time for it" in capsys.readouterr().err


def test_a_command_is_ended_when_the_time_is_up(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(gpu.Cut):
        gpu.output_of(["sleep", "60"], log, 0.1)
    with pytest.raises(subprocess.CalledProcessError):
        gpu.output_of(["false"], log, 60)
    assert gpu.output_of(["echo", "{}"], log, 60) == "{}\n"


def test_without_a_gpu_it_says_how_to_rehearse(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gpu.main([])
    assert end.value.code == 2
    assert "REHEARSE=1" in capsys.readouterr().err
