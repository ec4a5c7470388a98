"""The executor with small fake jobs: order, isolation, progress, failure and Ctrl-C."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from unitsphere.studies.core.jobs import held_signals, last_words, tail_records
from unitsphere.studies.core.local import (
    Interrupted,
    Job,
    LocalExecutor,
    available_cores,
    available_gpus,
    available_slots,
    here,
    run_jobs,
)


def job(folder: Path, name: str, code: str, **more) -> Job:
    """A job that runs a few lines of Python with its run folder as `out`."""
    lines = "import json, os, pathlib, signal, sys, time\nout = pathlib.Path(sys.argv[1])\n"
    out = folder / name
    argv = [sys.executable, "-S", "-c", lines + textwrap.dedent(code), str(out)]
    return Job(name=name, argv=argv, out=out, **more)


def test_every_job_runs_with_one_thread_on_its_own_core(tmp_path):
    code = """
    out.mkdir()
    threads = os.environ["OMP_NUM_THREADS"]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    (out / "seen").write_text(f"{threads} {len(cores)}")
    """
    jobs = [job(tmp_path, f"job-{i}", code) for i in range(3)]
    states = run_jobs(jobs, LocalExecutor(len(available_cores())))
    assert [s.status for s in states] == ["done"] * 3
    assert [s.job.name for s in states] == ["job-0", "job-1", "job-2"]
    assert [(j.out / "seen").read_text() for j in jobs] == ["1 1"] * 3


def test_no_more_jobs_at_once_than_workers(tmp_path):
    seen: list[int] = []
    jobs = [job(tmp_path, f"job-{i}", "time.sleep(0.3)") for i in range(4)]
    run_jobs(jobs, LocalExecutor(2), on_progress=lambda states: seen.append(running(states)))
    assert max(seen) == 2


def running(states) -> int:
    return sum(state.status == "running" for state in states)


def test_a_failed_job_ends_no_other_and_says_why(tmp_path):
    jobs = [
        job(tmp_path, "bad", "print('starting'); sys.exit('the disk is full')"),
        job(tmp_path, "user", "print('unitsphere: error: no such recipe\\nbye'); sys.exit(2)"),
        job(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        job(tmp_path, "silent", "sys.exit(3)"),
        job(tmp_path, "good", "time.sleep(0.1)"),
    ]
    bad, user, killed, silent, good = run_jobs(jobs, LocalExecutor(2))
    assert (bad.status, bad.error) == ("failed", "the disk is full")
    assert user.error == "unitsphere: error: no such recipe"
    assert killed.error == "ended by SIGKILL (out of memory?)"
    assert silent.error == "exit status 3, nothing printed"
    assert (good.status, good.error) == ("done", None)
    assert "starting" in bad.job.log.read_text()


def test_why_an_attempt_failed_is_not_taken_from_an_earlier_one(tmp_path):
    first = job(tmp_path, "run", "print('unitsphere: error: step 12: loss nan'); sys.exit(2)")
    assert run_jobs([first], LocalExecutor(1))[0].error == "unitsphere: error: step 12: loss nan"
    second = job(tmp_path, "run", "print('the GPU fell off'); sys.exit(1)")
    assert run_jobs([second], LocalExecutor(1))[0].error == "the GPU fell off"
    assert "loss nan" in second.log.read_text()


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path):
    assert last_words(tmp_path / "run.log", -40) == "ended by signal 40"


def test_a_job_that_was_stopped_from_elsewhere_and_saved_is_no_failure(tmp_path):
    (state,) = run_jobs([job(tmp_path, "run", "print('saved'); sys.exit(75)")], LocalExecutor(1))
    assert state.status == "interrupted"
    assert "has saved: the same command resumes" in str(state.error)


def test_a_job_on_a_gpu_has_one_of_its_own(tmp_path, monkeypatch):
    code = """
    out.mkdir()
    (out / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    time.sleep(0.5)
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    devices = {"first": "auto", "second": "cuda", "own": "cuda:1", "cpu": "cpu"}
    jobs = [job(tmp_path, name, code, device=device) for name, device in devices.items()]
    executor = here(jobs)
    assert executor.workers == 2
    run_jobs(jobs, executor=executor)
    seen = [(j.out / "gpus").read_text() for j in jobs]
    assert sorted(seen[:2]) == ["3", "5"]
    assert seen[2:] == ["3,5", "3,5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert available_gpus() == ["0", "1"]
    assert available_slots() == 2
    assert here(jobs[3:]).workers == len(available_cores())


def test_progress_and_time_left_are_read_from_the_metrics(tmp_path):
    code = """
    out.mkdir()
    with (out / "metrics.jsonl").open("a") as file:
        for step in range(1, 5):
            record = {"step": step, "loss": 5.0 - step, "tokens_per_second": 100.0}
            file.write(json.dumps(record) + "\\n")
            file.flush()
            time.sleep(0.4)
    """
    left: list[float] = []

    def note(states) -> None:
        if states[0].seconds_left is not None:
            left.append(states[0].seconds_left)

    (state,) = run_jobs([job(tmp_path, "run", code, steps=8)], LocalExecutor(1), on_progress=note)
    assert (state.step, state.loss, state.tokens_per_second) == (4, 1.0, 100.0)
    assert left[0] == pytest.approx(6 * 0.4, abs=1.2)
    assert state.seconds_left is None


def test_tail_records_leaves_out_what_is_half_written(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert tail_records(metrics) == []
    metrics.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert tail_records(metrics) == [{"step": 1}, {"step": 2}]
    metrics.write_text("".join(f'{{"step": {i}}}\n' for i in range(20_000)))
    records = tail_records(metrics)
    assert records[-1] == {"step": 19_999}
    assert len(records) < 20_000


@pytest.mark.parametrize("torn", ['{"st', "[1]", "null", "\x00\x00", '{"loss": 1}'])
def test_tail_records_leaves_out_a_line_that_is_no_record(tmp_path, torn):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(f'{{"step": 1}}\n{torn}\n{{"step": 2}}\n')
    assert tail_records(metrics) == [{"step": 1}, {"step": 2}]


SAVES = """
out.mkdir()
def save(*_):
    (out / "saved").write_text("yes")
    sys.exit(75)
signal.signal(signal.SIGINT, save)
(out / "ready").touch()
time.sleep(60)
"""


def test_who_watches_may_stop_a_job_early(tmp_path):
    saves = SAVES.replace("SIGINT", "SIGTERM")
    jobs = [job(tmp_path, "bad", saves), job(tmp_path, "good", "time.sleep(0.2)")]

    def watch(states) -> None:
        if (jobs[0].out / "ready").exists():
            states[0].stop = "too slow"

    bad, good = run_jobs(jobs, LocalExecutor(2), on_progress=watch)
    assert (bad.status, bad.stop, bad.error) == ("interrupted", "too slow", "too slow")
    assert (good.status, good.stop) == ("done", None)
    assert (jobs[0].out / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_lets_every_job_save(tmp_path, number):
    jobs = [job(tmp_path, f"job-{i}", SAVES) for i in range(3)]

    shown: list[list[str]] = []

    def stop_when_ready(states) -> None:
        shown.append([state.status for state in states])
        if "running" in shown[-1] and all((j.out / "ready").exists() for j in jobs[:2]):
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught:
        run_jobs(jobs, LocalExecutor(2), on_progress=stop_when_ready)
    assert [s.status for s in caught.value.states] == ["interrupted", "interrupted", "waiting"]
    assert shown[-1] == ["stopping", "stopping", "waiting"]
    assert [(j.out / "saved").exists() for j in jobs] == [True, True, False]


def test_a_second_ctrl_c_ends_jobs_that_do_not_stop(tmp_path):
    deaf = "out.mkdir(); signal.signal(signal.SIGINT, signal.SIG_IGN); "
    stubborn = job(tmp_path, "deaf", deaf + "(out / 'ready').touch(); time.sleep(60)")

    def stop_twice(states) -> None:
        if states[0].status == "running" and (stubborn.out / "ready").exists():
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(Interrupted, match="deaf: it did not save in time and was killed"):
        run_jobs([stubborn], LocalExecutor(1), on_progress=stop_twice)
    assert time.monotonic() - began < 10


def test_a_signal_within_a_held_step_acts_at_its_end():
    done = []

    def step() -> None:
        with held_signals():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("step")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["step"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_display_leaves_no_job_behind(tmp_path):
    only = job(tmp_path, "job", SAVES)

    def broken(states) -> None:
        if (only.out / "ready").exists():
            raise RuntimeError("display")

    with pytest.raises(RuntimeError, match="display"):
        run_jobs([only], LocalExecutor(1), on_progress=broken)
    assert (only.out / "saved").exists()


def test_the_module_imports_without_torch():
    code = "import sys, unitsphere.studies.core.local; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
