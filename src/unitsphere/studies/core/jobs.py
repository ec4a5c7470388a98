"""A job of a study, where it stands, and how far its run folder says that it has come."""

import contextlib
import dataclasses
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from unitsphere.files import open_given, read_bytes

Status = Literal["waiting", "running", "done", "failed", "stopping", "interrupted"]
"""interrupted: it has saved and stopped, by Ctrl-C or exit status 75; the same call resumes it"""

SAVED = 75
"""exit status of a run that was asked to stop and has saved its state"""
RESUMES = "stopped and saved: the same command resumes there"
KILLED = "it did not save in time and was killed: it resumes from its last checkpoint"
STOPPED = "it was stopped from elsewhere, and has saved: the same command resumes it"
TAIL_BYTES = 32_768
DIVERGED = re.compile(
    r"step \d+: (loss \S+, gradient norm \S+|validation loss (nan|-?inf)|weights that are NaN)"
)
"""In the last words of a run whose loss, gradient or weights were NaN or infinite, or a spike."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One command and the run folder it writes; `steps` is how far it has to go, if known.

    `device` is the run's `train.device`: one that may be a GPU gets its own GPU. `arm` is
    what the progress of many jobs is summed up by.
    """

    name: str
    argv: Sequence[str]
    out: Path
    steps: int | None = None
    device: str = "cpu"
    arm: str | None = None

    @property
    def log(self) -> Path:
        """The file that receives the job's output, next to its run folder."""
        return self.out.with_name(self.out.name + ".log")


@dataclasses.dataclass
class State:
    """Where one job stands. `error` is why it did not end well: of a failed job its last line.

    Who sees the states may set `stop`, the reason why a job is to save and end before its time.
    """

    job: Job
    status: Status = "waiting"
    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds: float = 0.0
    seconds_left: float | None = None
    overdue: float = 0.0
    """seconds by which it is later than its pace said: it validates, or it is finishing"""
    error: str | None = None
    stop: str | None = None
    log_begins: int = 0
    """bytes that earlier attempts left in the log"""

    @property
    def diverged(self) -> bool:
        """Whether the run ended by its loss or gradient, which is a result."""
        return self.status == "failed" and DIVERGED.search(self.error or "") is not None

    @property
    def stopped_early(self) -> bool:
        """Whether it has ended because somebody set `stop`."""
        return self.status == "interrupted" and self.stop is not None

    def end(self, code: int) -> None:
        """Take the exit status of the job's process (minus the signal that ended it)."""
        stopped = code == SAVED or self.stop is not None
        self.status = "done" if code == 0 else "interrupted" if stopped else "failed"
        if self.status == "interrupted":
            self.error = self.stop or STOPPED
        elif self.status == "failed":
            self.error = last_words(self.job.log, code, self.log_begins)
        self.seconds_left = None


class Interrupted(KeyboardInterrupt):
    """The user or the machine asked to stop; the message says what still runs, and what to do.

    `states` are the jobs' as it was left.
    """

    def __init__(self, states: list[State], message: str = RESUMES) -> None:
        super().__init__(message)
        self.states = states

    def __str__(self) -> str:
        killed = [state.job.name for state in self.states if state.error == KILLED]
        lost = f" (but {', '.join(killed)}: {KILLED})" if killed else ""
        return f"{super().__str__()}{lost}"


Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def handling(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Within: `handler` takes these signals, but for those that are ignored.

    Python delivers signals only to the main thread: elsewhere it takes none.
    """
    here = threading.current_thread() is threading.main_thread()
    taken = [n for n in numbers if here and signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def nothing_to_save(number: int, frame: FrameType | None) -> None:
    """For a signal before the first step and after the last, when a run does not listen."""
    name = signal.Signals(number).name
    print(
        f"unitsphere: {name} while not training: the same command starts or resumes the run",
        file=sys.stderr,
        flush=True,
    )
    sys.exit(SAVED)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """What asks to stop meanwhile acts at the end: for steps that must not be left half done.

    The handlers are put off, not blocked: a process that is started within it is as it always is.
    """
    arrived: list[int] = []
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        with handling(stops, lambda number, frame: arrived.append(number)):
            yield
    finally:
        for number in arrived[:1]:
            signal.raise_signal(number)


class Clock:
    """Reads a job's progress from its metrics, and from the pace of it the time that is left."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.started = time.monotonic()
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] = (0, 0.0)

    def read(self) -> None:
        """Bring the state's figures up to date."""
        state, now = self.state, time.monotonic()
        state.seconds = now - self.started
        for record in tail_records(state.job.out / "metrics.jsonl"):
            state.step = record.get("step", state.step)
            state.loss = record.get("loss", state.loss)
            state.tokens_per_second = record.get("tokens_per_second", state.tokens_per_second)
        if state.step != self.last[0]:
            self.last = (state.step, now)
            self.first = self.first or self.last
        if state.job.steps and self.first and self.last[0] > self.first[0]:
            pace = (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])
            left = pace * (state.job.steps - state.step) - (now - self.last[1])
            state.seconds_left, state.overdue = max(0.0, left), max(0.0, -left)


def tail_records(metrics: Path) -> list[dict[str, Any]]:
    """The last records of a metrics file, oldest first; none if it is not there yet.

    A torn line is left out.
    """
    from unitsphere.training.log import parse  # it loads rich, which --help does without

    if not metrics.exists():
        return []
    with open_given(metrics, metrics.parent) as file:
        start = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES)
        file.seek(start)
        lines = file.read().split(b"\n")
    # The first line may begin before the tail, the last one may still be being written.
    return [record for record in map(parse, lines[1 if start else 0 : -1]) if record is not None]


def last_words(log: Path, code: int, begins: int = 0) -> str:
    """Why a job failed: the signal that ended it, or the last line it printed.

    What is in the log before byte `begins` is of earlier attempts.
    """
    if code < 0:
        named = {number.value: number.name for number in signal.Signals}
        name = named.get(-code, f"signal {-code}")
        return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    found = read_bytes(log, log.parent) if log.exists() else b""
    text = found[begins:].decode(errors="replace")
    said = [line.strip() for line in text.split("\n") if line.strip()]
    errors = [line for line in said if line.startswith("unitsphere: error:")]
    return (errors or said or [f"exit status {code}, nothing printed"])[-1]
