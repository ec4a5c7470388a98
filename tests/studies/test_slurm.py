"""Jobs in a cluster: submitit's local executor, and stand-ins for SLURM's own commands."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.core import slurm
from unitsphere.studies.core.cluster import Resources
from unitsphere.studies.core.execute import executor_of
from unitsphere.studies.core.local import Interrupted, Job, run_jobs
from unitsphere.studies.core.slurm import SlurmExecutor, Squeue
from unitsphere.studies.core.spec import Execution

pytest.importorskip("submitit")
WAITS = """
(out / "starts").open("a").write("x")
while not (out / "go").exists():
    time.sleep(0.05)
"""
SAVES = """
def save(*_):
    print("saving")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
(out / "ready").touch()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = str(Path(slurm.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(SlurmExecutor, "poll_seconds", 0.1)
    monkeypatch.setattr(slurm, "LOOK_SECONDS", 0.3)


def job(name: str, code: str, **more) -> Job:
    """A job that runs a few lines of Python with its run folder, which exists, as `out`."""
    lines = "import json, os, pathlib, signal, sys, time\nout = pathlib.Path(sys.argv[1])\n"
    lines += "out.mkdir(exist_ok=True)\n" + textwrap.dedent(code)
    out = Path("runs") / name
    return Job(name=name, argv=[sys.executable, "-S", "-c", lines, str(out)], out=out, **more)


def local(workers: int | None = None) -> SlurmExecutor:
    return SlurmExecutor(Path(), Resources(time="10m"), workers, cluster="local")


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_jobs_end_well_fail_or_are_preempted_and_continue():
    turns = """
    (out / "turns").open("a").write("x")
    (out / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 2.5}) + "\\n")
    print("saved")
    sys.exit(75 if len((out / "turns").read_text()) < 2 else 0)
    """
    jobs = [
        job("good", "print(os.environ['OMP_NUM_THREADS'])"),
        job("bad", "print('unitsphere: error: no such recipe'); sys.exit(2)"),
        job("preempted", turns),
    ]
    good, bad, preempted = run_jobs(jobs, executor=local())
    assert (good.status, good.error) == ("done", None)
    assert good.job.log.read_text() == "1\n"
    assert (bad.status, bad.error) == ("failed", "unitsphere: error: no such recipe")
    assert (preempted.status, preempted.step, preempted.loss) == ("done", 3, 2.5)
    assert Path("runs/preempted/turns").read_text() == "xx"


@pytest.mark.timeout(120)
def test_after_ctrl_c_the_jobs_continue_and_the_same_call_finds_them():
    jobs = [job("first", WAITS)]

    def leave(states) -> None:
        if Path("runs/first/starts").exists() and not Path("left").exists():
            Path("left").touch()
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        run_jobs(jobs, on_progress=leave, executor=local())
    number = next(iter(json.loads(Path(".jobs/jobs.json").read_text()).values()))
    assert (
        f"1 runs continue in the cluster: the same command finds them again; `scancel {number}`"
        in str(stopped.value)
    )
    assert stopped.value.states[0].status in ("waiting", "running")
    second = job("second", "pass")
    states = run_jobs([*jobs, second], on_progress=lambda _: go("first"), executor=local())
    assert [state.status for state in states] == ["done", "done"]
    assert Path("runs/first/starts").read_text() == "x"


@pytest.mark.timeout(120)
def test_what_diverged_while_nobody_followed_is_not_run_again(monkeypatch):
    error = "step 3: loss nan, gradient norm nan"
    wild = job("wild", f"(out / 'turns').open('a').write('x'); print('{error}'); sys.exit(2)")
    broken = job("broken", "(out / 'turns').open('a').write('x'); print('oh'); sys.exit(2)")

    def leave(states) -> None:
        ended = all(Path(f"runs/{name}.exit").exists() for name in ("wild", "broken"))
        if ended and not Path("left").exists():
            Path("left").touch()
            raise KeyboardInterrupt

    followed = local()
    monkeypatch.setattr(followed, "_ended", lambda job, fresh: False)  # it looks away
    with pytest.raises(Interrupted):
        run_jobs([wild, broken], on_progress=leave, executor=followed)
    numbers = list(json.loads(Path(".jobs/jobs.json").read_text()).values())
    while slurm.Processes().look(numbers):  # submitit's own processes end
        time.sleep(0.05)
    run_jobs([job("other", "pass")], executor=local())  # and another turn comes between
    states = run_jobs([wild, broken], executor=local())
    assert [state.status for state in states] == ["failed", "failed"]
    assert [state.diverged for state in states] == [True, False]
    assert [Path(f"runs/{name}/turns").read_text() for name in ("wild", "broken")] == ["x", "xx"]


def go(name: str) -> None:
    Path("runs", name, "go").touch()


@pytest.mark.timeout(120)
def test_a_cancelled_job_has_saved_and_is_no_failure():
    seen: list[str] = []

    def cancel(states) -> None:
        seen.append(states[0].status)
        if Path("runs/run/ready").exists() and "cancelled" not in seen:
            seen.append("cancelled")
            (number,) = json.loads(Path(".jobs/jobs.json").read_text()).values()
            os.kill(int(number), signal.SIGTERM)

    (state,) = run_jobs([job("run", SAVES)], on_progress=cancel, executor=local())
    assert state.status == "interrupted"
    assert "has saved" in str(state.error)
    assert "running" in seen
    assert state.job.log.read_text() == "saving\n"


@pytest.mark.timeout(120)
def test_who_watches_may_stop_a_job_early():
    def watch(states) -> None:
        if Path("runs/run/ready").exists():
            states[0].stop = "too slow"

    (state,) = run_jobs([job("run", SAVES)], on_progress=watch, executor=local())
    assert (state.status, state.stop) == ("interrupted", "too slow")
    assert state.job.log.read_text() == "saving\n"


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_cluster")
def test_a_job_that_is_stopped_while_it_waits_in_the_queue_is_no_failure():
    program("scancel", "rm queue.txt; touch queue.txt")
    Path("queue.txt").write_text("7_0 PENDING\n")

    def watch(states) -> None:
        states[0].stop = "too slow"

    executor = SlurmExecutor(Path(), Resources())
    (state,) = run_jobs([job("run", "pass")], on_progress=watch, executor=executor)
    assert (state.status, state.error) == ("interrupted", "too slow")
    assert state.stopped_early


@pytest.mark.timeout(120)
def test_a_job_that_vanishes_is_a_failure_with_a_reason():
    kills_its_task = "os.kill(os.getppid(), signal.SIGKILL)"
    (state,) = run_jobs([job("run", kills_its_task)], executor=local())
    assert state.status == "failed"
    assert "left the queue before its end" in str(state.error)


def program(name: str, script: str) -> None:
    """A command of SLURM's in the folder `bin`."""
    Path("bin").mkdir(exist_ok=True)
    Path("bin", name).write_text(f"#!/bin/bash\n{script}\n")
    Path("bin", name).chmod(0o755)


@pytest.fixture
def _cluster(monkeypatch) -> None:
    """SLURM's commands as far as they are used: sbatch keeps the script, srun runs a task."""
    program("sbatch", 'cp "$1" batch.sh; echo Submitted batch job 7')
    program("srun", 'while [[ $1 == --* ]]; do [[ $1 == --output ]] && shift; shift; done\n"$@"')
    program("scontrol", 'echo "$@" >> scontrol.txt')
    program("squeue", 'echo "$@" >> asked.txt; cat queue.txt')
    monkeypatch.setenv("PATH", str(Path("bin").absolute()), prepend=os.pathsep)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_cluster")
def test_an_array_of_slurm_jobs_is_submitted_run_and_followed():
    jobs = [
        job("first", "print('one')"),
        job("second", "sys.exit(75)"),
        job("third", "sys.exit(3)"),
    ]
    asked = Resources(gpus=1, time="90m", partition="big", cpus=4)
    executor = SlurmExecutor(Path(), asked, workers=2)
    seen: list[list[str]] = []
    Path("queue.txt").write_text("7_0 RUNNING\n7_1 PENDING\n7_2 PENDING\n")

    def cluster(states) -> None:
        """A look at the queue later, everything has had its turn."""
        seen.append([state.status for state in states])
        if len(seen) == 1:
            Path("queue.txt").write_text("7_1 PENDING\n7_2 COMPLETED\n")
            for index in range(3):
                turn(index)
        elif states[0].status == states[2].status:
            Path("queue.txt").write_text("")

    with pytest.raises(Interrupted) as stopped:
        run_jobs(jobs, executor=executor, on_progress=lambda states: stop_after(cluster, states))
    first, second, third = stopped.value.states
    batch = Path("batch.sh").read_text()
    for line in ("array=0-2%2", "time=90", "gpus-per-node=1", "cpus-per-task=4", "requeue"):
        assert f"#SBATCH --{line}\n" in batch
    assert seen[0] == ["running", "waiting", "waiting"]
    assert (first.status, third.status) == ("done", "failed")
    assert third.error == "exit status 3, nothing printed"
    assert second.status == "waiting"
    assert Path("scontrol.txt").read_text() == "requeue 7_1\n"
    assert "1 runs continue in the cluster" in str(stopped.value)
    assert "--jobs=7" in Path("asked.txt").read_text()


def stop_after(cluster, states) -> None:
    """Ctrl-C once two of the three jobs have ended."""
    cluster(states)
    ended = sum(state.status in ("done", "failed") for state in states)
    if ended == 2 and not Path("left").exists():
        Path("left").touch()
        raise KeyboardInterrupt


def turn(index: int) -> None:
    """Run the script of the array as SLURM would for one of its jobs."""
    variables = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_NTASKS": "1"}
    variables |= {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_NUM_NODES": "1"}
    subprocess.run(
        ["bash", "batch.sh"], env=os.environ | variables, capture_output=True, timeout=60
    )


@pytest.mark.usefixtures("_cluster")
def test_a_queue_that_does_not_answer_is_not_an_empty_one(monkeypatch):
    Path("queue.txt").write_text("7_0 RUNNING\n7_1 COMPLETED\n")
    assert Squeue().look(["7_0", "7_1"]) == {"7_0": "RUNNING"}
    program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert Squeue().look(["7_0"]) == {}
    program("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert Squeue().look(["7_0"]) is None
    program("squeue", "exec sleep 60")
    with monkeypatch.context() as impatient:
        impatient.setattr(slurm, "QUEUE_SECONDS", 0.2)
        assert Squeue().look(["7_0"]) is None
    program("squeue", "exit 1")
    Path(".jobs").mkdir()
    Path(".jobs/jobs.json").write_text(json.dumps({str(Path("runs/run").absolute()): "7_0"}))
    with pytest.raises(UserError, match="squeue does not answer"):
        run_jobs([job("run", "pass")], executor=SlurmExecutor(Path(), Resources()))


@pytest.mark.usefixtures("_cluster")
def test_what_slurm_refuses_is_told():
    program("sbatch", "echo 'error: invalid partition specified: big' >&2; exit 1")
    with pytest.raises(UserError, match=r"SLURM refused the jobs: .*invalid partition"):
        run_jobs([job("run", "pass")], executor=SlurmExecutor(Path(), Resources()))


def test_mistakes_in_run_are_told(monkeypatch):
    with pytest.raises(UserError, match=r"run\.workers must be at least 1"):
        Execution(workers=0)
    with pytest.raises(UserError, match=r'run\.slurm is for run\.executor = "slurm"'):
        Execution(slurm=Resources(gpus=1))
    with pytest.raises(UserError, match=r"run\.slurm\.tasks must be at least 1: 0"):
        Resources(tasks=0)
    with pytest.raises(UserError, match=r"run\.slurm\.time must be a time such as"):
        Resources(time="soon")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="found no srun"):
        executor_of(Execution(executor="slurm"), Path())([])
