"""Runs many trainings at once, by whatever executes them, and follows them to their ends.

A job is a command whose run folder holds `metrics.jsonl`, from which its progress is read. Its
output goes to `<run folder>.log`. A job that fails ends no other; what happens to the jobs on
Ctrl-C is the executor's: processes of this machine save and end (local.py), jobs of a cluster go
on (slurm.py). The same call goes on later.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from unitsphere.studies.jobs import Interrupted, Job, State
from unitsphere.studies.local import LocalExecutor, available_cores, available_gpus, wants_gpu

__all__ = ["Executor", "Interrupted", "Job", "State", "available_cores", "here", "run_jobs"]


class Executor(Protocol):
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
    workers: int | None = None,
    on_progress: Callable[[list[State]], None] = lambda states: None,
    executor: Executor | None = None,
) -> list[State]:
    """Run the jobs in their order, at most `workers` at a time (by default one a core or GPU).

    `on_progress` sees the states after every look at them. Without `executor` they are processes
    of this machine.

    Returns:
        One state a job, in the jobs' order, each `done`, `failed`, or `interrupted` if it has
        been stopped from elsewhere and saved.

    Raises:
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once the executor has dealt with the jobs.
    """
    states = [State(job) for job in jobs]
    chosen = executor or here(jobs, workers)
    with _stop_signals():
        try:
            chosen.begin(states)
            while chosen.poll():
                on_progress(states)
                time.sleep(chosen.poll_seconds)
            on_progress(states)
        except KeyboardInterrupt:
            message = chosen.interrupt()
            on_progress(states)
            raise Interrupted(states, message) from None
        finally:
            chosen.close()
    return states


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP (a closed terminal) stop as Ctrl-C does, unless ignored."""
    taken = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, signal.default_int_handler) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
