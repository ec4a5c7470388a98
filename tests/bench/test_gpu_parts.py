"""benchmarks/gpu.py: every part at toy size, and what a call that was cut short leaves."""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from studies.inprocess import trained_here

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


@pytest.fixture
def rehearse(tmp_path, monkeypatch, capsys):
    """Runs a part at toy size in this process, as --rehearse does in another; gives the page."""

    def here(command, log, seconds, fine=(0,)):
        assert command[:3] == [*gpu.UNITSPHERE]
        assert main(command[3:]) in fine
        return capsys.readouterr().out

    def run(name, *argv):
        monkeypatch.setattr(gpu, "output_of", here)
        options = gpu.parse(["--rehearse", *argv])
        assert (
            gpu.run_parts(
                [name], 99, tmp_path, lambda *part: gpu.measure(part[0], tmp_path, part[1], options)
            )
            == []
        )
        return gpu_page.page(tmp_path)

    return run


@pytest.mark.parametrize("name", gpu.BENCHES)
def test_every_part_is_rehearsed_and_has_a_table(name, rehearse, monkeypatch):
    monkeypatch.setattr(train, "ceilings", lambda device: Ceilings(1e9, 1e10))
    page = rehearse(name)
    assert f"## {name}" in page
    assert page.count("\n|") >= 3


def test_the_comparison_is_rehearsed_on_a_folder_of_texts(rehearse, tmp_path):
    for name in ("train", "dev"):
        rows = [json.dumps({"text": f"{name}: {n} foxes jump over {n} dogs"}) for n in range(99)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    with trained_here():
        page = rehearse("compare", "--data", str(tmp_path))
    assert "## compare" in page
    for arm in read_toml(gpu.STUDY)["arms"]:
        assert re.search(rf"\| {arm} +\| [\d,]+ \| [\d.]+ \| +512 \| +\d", page), page


@pytest.mark.parametrize("xdist", [True, False])
def test_the_tests_of_a_part_are_counted_with_and_without_xdist(xdist, tmp_path, monkeypatch):
    path = tmp_path / "test_toy.py"
    path.write_text("def test_one(): pass\ndef test_other(): assert False\n")
    monkeypatch.setitem(gpu.TESTS, "tests", (str(path),))
    if not xdist:
        monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    commands, output_of = [], gpu.output_of

    def run(command, *rest, **named):
        commands.append(command)
        return output_of(command, *rest, **named)

    monkeypatch.setattr(gpu, "output_of", run)
    found = gpu.run_tests("tests", 240, tmp_path, rehearse=False)
    assert ("-n" in commands[0]) == xdist
    assert found["summary"].startswith("1 failed, 1 passed")
    [failed] = found["failed"]
    assert "test_toy.py::test_other" in failed


def planned(minutes, folder, monkeypatch):
    """The parts of each call until all are measured, if each takes as long as is estimated."""
    now, calls = [0.0], []
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def one(name, seconds):
        if name == "compare":
            assert seconds >= 60 * gpu.ESTIMATES[name]
        now[0] += seconds if name == "compare" else 60 * gpu.ESTIMATES[name]
        calls[-1].append(name)
        return {}

    left = list(gpu.ESTIMATES)
    while left:
        calls.append([])
        left = gpu.run_parts([*gpu.ESTIMATES], minutes, folder, one)
        assert calls[-1], f"{minutes} minutes are too few for {left}"
    return calls


def test_one_call_has_time_for_all_but_fla_and_the_next_for_fla(tmp_path, monkeypatch):
    *rest, last = gpu.ESTIMATES
    assert last == "fla"
    assert planned(gpu.MINUTES, tmp_path, monkeypatch) == [rest, [last]]
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nGPU_MINUTES ?= {gpu.MINUTES}\n" in makefile


def test_four_calls_of_nine_minutes_are_enough(tmp_path, monkeypatch):
    calls = planned(9, tmp_path, monkeypatch)
    assert [call[-1] for call in calls] == ["step-0.5b", "optimizers", "compare", "fla"]


def test_its_page_has_the_estimates_in_their_order():
    page = (ROOT / "docs" / "how-to" / "gpu.md").read_text()
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.]+)", page, re.MULTILINE)
    assert [(name, float(minutes)) for name, minutes in rows] == [*gpu.ESTIMATES.items()]


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

    names = ["tests", "kernels", "loss", "step-50m"]
    assert gpu.run_parts(names, 2.1, tmp_path, one) == ["kernels", "loss", "step-50m"]
    assert asked == ["tests", "kernels", "loss"]  # 2.2 minutes for the last were not left
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
