"""Jobs as processes of this machine: one thread each, on a core or its own GPU."""

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from unitsphere.files import append_to
from unitsphere.studies.core.jobs import (
    KILLED,
    RESUMES,
    Clock,
    Interrupted,
    Job,
    State,
    handling,
    held_signals,
)

POLL_SECONDS = 0.25
# A child asked to stop finishes its step and writes a checkpoint; past this it is ended.
GRACE_SECONDS = 60.0


class LocalExecutor:
    """At most `workers` jobs at a time, each pinned to a core; each of `gpus` serves one.

    Args:
        workers: jobs at a time.
        gpus: names of GPUs as CUDA_VISIBLE_DEVICES takes them, dealt out to the workers in turn.
            A job that would use a GPU (`device` "cuda" or "auto") then sees only its worker's.
    """

    poll_seconds = POLL_SECONDS

    def __init__(self, workers: int, gpus: Sequence[str] = ()) -> None:
        self.workers = workers
        self.gpus = gpus
        self.waiting: list[State] = []
        self.running: dict[int, _Child] = {}

    def begin(self, states: Sequence[State]) -> None:
        """Take the jobs; `poll` starts them in their order."""
        self.waiting = list(states)

    def poll(self) -> bool:
        """Bring the states up to date and fill free workers; whether a job is at work."""
        for slot in [slot for slot, child in self.running.items() if child.poll()]:
            del self.running[slot]
        cores = available_cores()
        for slot in range(self.workers):
            if slot not in self.running and self.waiting:
                # With cores to spare the system places a process better than we do.
                core = cores[slot % len(cores)] if self.workers >= len(cores) else None
                gpu = self.gpus[slot % len(self.gpus)] if self.gpus else None
                with held_signals():  # a child that is not in `running` would outlive this process
                    self.running[slot] = _Child(self.waiting.pop(0), core, gpu)
        return bool(self.running)

    def interrupt(self) -> str:
        """Mark the jobs at work as stopping, which `close` does to them."""
        for child in self.running.values():
            child.state.status, child.state.seconds_left = "stopping", None
        return RESUMES

    def close(self) -> None:
        """Ask every job to save and end; end those that do not, or all on a second Ctrl-C."""
        every = list(self.running.values())
        children = [child for child in every if child.process.poll() is None]
        for child in children:
            child.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            for child in children:
                child.process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for child in children:
                child.kill()
        for child in every:
            if child in children:
                child.state.status = "interrupted" if child.process.returncode else "done"
            else:  # it had ended before it was asked to
                child.poll()


def available_cores() -> list[int]:
    """The cores this process may use (on systems that do not tell, all that the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_gpus() -> list[str]:
    """The GPUs this process may use, by names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


def available_slots() -> int:
    """Runs at a time where nobody says otherwise: one per GPU, without GPUs one per core."""
    return len(available_gpus()) or len(available_cores())


def wants_gpu(job: Job) -> bool:
    """Whether a job takes whatever GPU it is given (one that names its own does not)."""
    return job.device in ("cuda", "auto")


class _Child:
    """A running job: its process, its state, and the clock."""

    def __init__(self, state: State, core: int | None, gpu: str | None) -> None:
        self.state = state
        self.clock = Clock(state)
        self.asked = False
        job = state.job
        job.log.parent.mkdir(parents=True, exist_ok=True)
        fixed = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
        if gpu is not None and wants_gpu(job):
            fixed["CUDA_VISIBLE_DEVICES"] = gpu
        with append_to(job.log) as log, _on_core(core):
            state.log_begins = log.tell()
            self.process = subprocess.Popen(
                list(job.argv),
                env={**os.environ, **fixed, LIFELINE: str(lifeline())},
                pass_fds=[lifeline()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A separate session: the terminal's Ctrl-C reaches it once, through `close`.
                start_new_session=True,
            )
        state.status = "running"

    def poll(self) -> bool:
        """Bring the state up to date; whether the process has ended."""
        code = self.process.poll()
        self.clock.read()
        if code is not None:
            self.state.end(code)
        elif self.state.stop is not None and not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGTERM)
        return code is not None

    def kill(self) -> None:
        """End it where it is, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.state.error = KILLED


@contextlib.contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """A process started within it may run on `core` only, from its first instruction."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class JobExecutor(Protocol):
    """What runs jobs. `workers` is how many may be at work at once."""

    @property
    def workers(self) -> int: ...

    @property
    def poll_seconds(self) -> float:
        """Time between two calls of `poll`."""
        ...

    def begin(self, states: Sequence[State]) -> None:
        """Take the jobs, all of them `waiting`; called once."""

    def poll(self) -> bool:
        """Bring the states up to date, start what can start; whether any has not ended."""
        ...

    def interrupt(self) -> str:
        """Ctrl-C has come: what is to be told of the jobs, and how to come back to them."""
        ...

    def close(self) -> None:
        """Leave nothing behind that nobody follows; called once, however it ended."""


def here(jobs: Sequence[Job], workers: int | None = None) -> LocalExecutor:
    """Processes of this machine, as many as there are GPUs if the jobs use them, else cores."""
    gpus = available_gpus() if any(wants_gpu(job) for job in jobs) else []
    return LocalExecutor(workers or len(gpus) or len(available_cores()), gpus)


def run_jobs(
    jobs: Sequence[Job],
    executor: JobExecutor,
    on_progress: Callable[[list[State]], None] = lambda states: None,
) -> list[State]:
    """Run the jobs in their order; `on_progress` sees the states after every look at them.

    Returns:
        One state per job, in the jobs' order, each `done`, `failed`, or `interrupted` if it has
        been stopped from elsewhere and saved.

    Raises:
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once the executor has dealt with the jobs.
    """
    states = [State(job) for job in jobs]
    # SIGTERM and SIGHUP (a closed terminal) stop as Ctrl-C does.
    with handling((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler):
        try:
            executor.begin(states)
            while executor.poll():
                on_progress(states)
                time.sleep(executor.poll_seconds)
            on_progress(states)
        except KeyboardInterrupt:
            message = executor.interrupt()
            on_progress(states)
            raise Interrupted(states, message) from None
        finally:
            executor.close()
    return states


LIFELINE = "UNITSPHERE_LIFELINE"
"""names to a job the descriptor of its end"""


@functools.cache
def lifeline() -> int:
    """The end that is for this process's jobs; the other one is open as long as the process."""
    jobs_end, _ = os.pipe()
    return jobs_end


def end_with_parent() -> None:
    """As the job of a study: stop when the study's process has gone. Else nothing."""
    # Taken out, since the descriptor is not handed on to processes that this one starts.
    named = os.environ.pop(LIFELINE, None)
    if named is None:
        return
    end = int(named)
    os.set_inheritable(end, False)
    threading.Thread(target=_stop_at_end_of, args=[end], name="lifeline", daemon=True).start()


def _stop_at_end_of(end: int) -> None:
    if not os.read(end, 1):
        os.kill(os.getpid(), signal.SIGTERM)
