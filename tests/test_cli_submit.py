"""`train --submit`: jobs on this machine, and what a cluster's own commands would be given."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_recipe import tiny_recipe

from unitsphere.cli import job, main
from unitsphere.cli.submit import take_submission
from unitsphere.errors import UserError
from unitsphere.training.stop import Stop

pytest.importorskip("submitit")
RECIPE = tiny_recipe(
    "ngpt",
    data={"context": 32},
    lr=2e-2,
    batch_tokens=256,
    save_every=0,
    eval_every=0,
    sample_every=0,
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    package = str(Path(job.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    Path("text.txt").write_text("some text to learn\n" * 500)
    Path("tiny.toml").write_text(RECIPE)


def program(name: str, script: str) -> None:
    """A command of SLURM's in the folder `bin`."""
    Path("bin").mkdir(exist_ok=True)
    Path("bin", name).write_text(f"#!/bin/bash\n{script}\n")
    Path("bin", name).chmod(0o755)


@pytest.fixture
def cluster(monkeypatch) -> None:
    """SLURM's commands as far as submitit uses them; sbatch keeps the script, srun runs a task."""
    program("sbatch", 'cp "$1" batch.sh; echo Submitted batch job 7')
    program(
        "srun", 'while [[ $1 == --* ]]; do [[ $1 == --output ]] && shift; shift; done\nexec "$@"'
    )
    program("scontrol", 'echo "$@" >> scontrol.txt')
    monkeypatch.setenv("PATH", str(Path("bin").absolute()), prepend=os.pathsep)


@pytest.mark.timeout(300)
def test_two_local_tasks_are_told_in_time_and_continue_by_themselves():
    command = [sys.executable, "-m", "unitsphere", "train", "tiny.toml", "--out", "run"]
    command += ["--train.steps", "150", "--submit", "local", "--submit.tasks", "2"]
    # It ends when nobody holds its pipe any more: the job, which is at work, does not.
    said = subprocess.run(command, capture_output=True, text=True, timeout=140).stdout
    number = int(re.match(r"job (\d+): local, logs in run/.jobs\n", said).group(1))
    log = Path(f"run/.jobs/{number}_0_log.out")
    assert f"tail -F {log}" in said
    assert alive(number)
    wait_for(lambda: Path("run/metrics.jsonl").exists() or not alive(number))
    for task in children(number):
        os.kill(task, signal.SIGUSR2)  # as SLURM does before a job's time is over
    wait_for(lambda: not alive(number))
    printed = log.read_text()
    assert printed.count("the same command resumes") == printed.count("Requeued job") == 1
    assert "Job completed successfully" in printed
    records = Path("run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(record)["step"] for record in records]
    assert steps == [1, *range(10, 151, 10)]
    environment = json.loads(Path("run/environment.json").read_text())
    assert environment["processes"]["dp_replicate"] == 2
    assert 0 < environment["resumed"][0]["step"] < 150
    assert "step" not in Path(f"run/.jobs/{number}_1_log.out").read_text()


def wait_for(found) -> None:
    """Look 20 times a second, for at most 140 seconds."""
    end = time.monotonic() + 140
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Whether it runs, be it whose child it may."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(process: int) -> list[int]:
    """Its child processes."""
    mine = f"\nPPid:\t{process}\n"
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/status")
        if alive(int(path.parent.name)) and mine in path.read_text()
    ]


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("cluster")
def test_a_slurm_job_that_used_up_its_time_is_saved_and_goes_back_into_the_queue(capsys):
    asked = (
        "--submit slurm --submit.gpus 1 --submit.time 90m --submit.partition big --submit.cpus 3"
    )
    command = f"train tiny.toml {asked} --train.steps 100000 --train.time_limit 0.5s --out run"
    assert main(command.split()) == 0
    assert "scancel 7" in capsys.readouterr().out
    batch = Path("batch.sh").read_text()
    for line in ("time=90", "partition=big", "gpus-per-node=1", "ntasks-per-node=1", "requeue"):
        assert f"#SBATCH --{line}\n" in batch
    assert "#SBATCH --signal=USR2@120\n" in batch
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    done = subprocess.run(
        ["bash", "batch.sh"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "the same command resumes" in done.stderr
    assert Path("scontrol.txt").read_text() == "requeue 7\n"
    assert len(list(Path("run/checkpoints").iterdir())) == 1
    assert Path("run/.jobs/7_submitted.pkl").exists()


def run_until(numbers: list[int], monkeypatch) -> list[str]:
    """What submitit's handler is told when a run gets signals, saves and ends with 75."""
    requeued: list[str] = []

    def train(argv: list[str]) -> int:
        assert argv == ["train", "tiny.toml"]
        with Stop() as stop:
            for number in numbers:
                signal.raise_signal(number)
            assert stop.due()
        return 75

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    monkeypatch.setattr(job, "main", train)
    monkeypatch.setattr(job, "torchrun_variables", dict)
    signal.signal(signal.SIGUSR2, lambda *_: requeued.append("requeued"))
    try:
        job.TrainTask(["tiny.toml"])()
    except SystemExit as end:
        requeued.append(f"exit {end.code}")
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    return requeued


def test_the_end_of_its_time_requeues_a_job_and_scancel_does_not(monkeypatch):
    assert run_until([signal.SIGUSR2], monkeypatch) == ["requeued"]
    assert run_until([signal.SIGTERM], monkeypatch) == ["exit 75"]


def test_the_end_of_its_time_requeues_a_job_that_is_still_saving(monkeypatch):
    assert run_until([signal.SIGUSR2, signal.SIGTERM], monkeypatch) == ["requeued"]
    assert run_until([signal.SIGTERM, signal.SIGUSR2], monkeypatch) == ["exit 75"]


def test_a_signal_before_the_first_step_ends_the_task_with_75(monkeypatch):
    monkeypatch.setattr(job, "main", lambda argv: job.nothing_to_save(signal.SIGTERM, None))
    assert job.run_train(["tiny.toml"]) == 75


def test_the_variables_are_those_of_torchrun(monkeypatch):
    found = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[03-04]"}
    found |= {"SLURM_NTASKS": "16", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"}
    found |= {"SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    variables = job.torchrun_variables()
    assert 20000 <= int(variables.pop("MASTER_PORT")) <= 60000
    assert variables == {
        "MASTER_ADDR": "gpu03",
        "RANK": "11",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "8",
    }


def test_the_options_are_taken_out_of_the_command():
    own = ["tiny.toml", "--train.steps", "3"]
    words = ["--submit=slurm", *own, "--submit.nodes", "2", "--submit.gpus=8"]
    submission, rest = take_submission(words)
    assert (submission.cluster, submission.nodes, submission.gpus) == ("slurm", 2, 8)
    assert rest == own
    assert submission.parameters()["tasks_per_node"] == 8
    assert take_submission(rest) == (None, rest)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--submit.nodes 2", "add --submit slurm"),
        ("--submit", "--submit.cluster needs a value: one of slurm, local"),
        ("--submit lsf", "must be one of slurm, local, not 'lsf'"),
        ("--submit local --submit.nodes 2", "leave --submit.nodes out"),
        ("--submit slurm --submit.gpus -1", "--submit.gpus must be 0 or more"),
        ("--submit slurm --submit.tasks 0", "--submit.tasks must be at least 1"),
        ("--submit slurm --submit.node 2", "did you mean '--submit.nodes'?"),
        ("--submit local --submit.time soon", "submit.time must be a time such as"),
        ("--submit local --train.stepss 2", "did you mean '--train.steps'?"),
        ("--submit local --out bin", "holds no run: give --out another folder"),
    ],
)
def test_a_mistake_is_one_line_and_no_job(options, line, capsys):
    program("other", "true")
    assert main(["train", "tiny.toml", *options.split()]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))
    assert main(["train", "tiny.toml", "--submit", "slurm"]) == 2
    assert "found no srun" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["train", "tiny.toml", "--submit", "local"]) == 2
    assert "pip install 'unitsphere[cluster]'" in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_what_slurm_refuses_is_retold(capsys):
    program("sbatch", "echo 'error: invalid partition specified: big' >&2; exit 1")
    assert main(["train", "tiny.toml", "--submit", "slurm", "--submit.partition", "big"]) == 2
    error = capsys.readouterr().err
    assert "SLURM refused the job" in error
    assert "invalid partition" in error


def test_a_dry_run_of_a_job_is_of_its_processes(capsys):
    job = "--submit slurm --submit.nodes 2 --submit.gpus 2 --train.batch_tokens 512"
    assert main(["train", "tiny.toml", *job.split(), "--dry-run", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["world_size"] == 4
    assert said.err == "--dry_run: nothing is submitted\n"
    assert not Path("runs").exists()


def test_the_schedules_area_submits_nothing_and_says_so(capsys):
    assert main(["train", "tiny.toml", "--submit", "slurm", "--schedule.area"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("schedule.area ")
    assert said.err == "--area: nothing is submitted\n"
    assert not Path("runs").exists()


def test_a_submission_must_be_asked_for():
    with pytest.raises(UserError, match="is for a job"):
        take_submission(["tiny.toml", "--submit.time=2h"])
