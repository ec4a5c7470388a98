"""A contender's process, timed from its start."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """A line of output: seconds of wall and of processor time since the process started."""

    wall: float
    cpu: float
    text: str


@dataclass(frozen=True)
class Trace:
    """What a process said and when, and its times at its end."""

    lines: list[Line]
    wall: float
    cpu: float


@dataclass(frozen=True)
class Score:
    """A validation loss, in nats per token, and when it was known."""

    wall: float
    cpu: float
    loss: float


def traced(command: Sequence[str], cwd: Path, core: int | None, log: Path) -> Trace:
    """Run a command on one thread to its end; raises CalledProcessError if it failed.

    core: the only core that it may use. Its output goes to `log` too.
    """
    words = [*(["taskset", "-c", str(core)] if core is not None else []), *command]
    before, start = children_seconds(), time.monotonic()
    lines = []
    with (
        subprocess.Popen(
            words,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=one_thread(os.environ),
        ) as process,
        log.open("w", buffering=1) as copy,
    ):
        assert process.stdout is not None
        for text in process.stdout:
            wall = time.monotonic() - start
            lines.append(Line(wall, process_seconds(process.pid), text.rstrip()))
            copy.write(text)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return Trace(lines, time.monotonic() - start, children_seconds() - before)


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for one thread that writes each line at once."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**environment, **threads, "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}


def process_seconds(pid: int) -> float:
    """Processor time of a running process so far, all of its threads; of a finished one 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """Processor time of all processes that this one has started and waited for."""
    times = os.times()
    return times.children_user + times.children_system


def first_at(scores: Sequence[Score], target: float) -> Score | None:
    """The first score at or below the target."""
    return next((score for score in scores if score.loss <= target), None)
