"""What a user sees while jobs run: a live table on a terminal, plain lines elsewhere."""

import heapq
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from unitsphere.report.table import duration
from unitsphere.studies.jobs import Job, State
from unitsphere.studies.progress_table import COLUMNS, cropped, picture

PLAIN_SECONDS = 10.0


def display(workers: int, stream: TextIO, later: Sequence[Job] = ()) -> "LiveTable | PlainLines":
    """The display that suits `stream`: a context manager to call with the states.

    `later` are jobs of a later turn: they wait, and the time left counts them.
    """
    kind = LiveTable if stream.isatty() else PlainLines
    return kind(workers, stream, [State(job) for job in later])


class PlainLines:
    """A line when a job starts or ends, and one for each running job every ten seconds."""

    def __init__(self, workers: int, stream: TextIO, later: Sequence[State] = ()) -> None:
        self.workers = workers
        self.stream = stream
        self.later = later
        self.seen: dict[str, str] = {}
        self.next = time.monotonic() + PLAIN_SECONDS

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.flush()

    def __call__(self, states: Sequence[State]) -> None:
        """Print what is new."""
        for state in states:
            if self.seen.get(state.job.name, "waiting") != state.status:
                self.seen[state.job.name] = state.status
                self._say(f"{state.job.name}: {_news(state)}")
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + PLAIN_SECONDS
        for state in states:
            if state.status == "running":
                self._say(_running(state))
        left = time_left(states, self.workers, self.later)
        if left:
            self._say(f"about {duration(left)} left")

    def _say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


class LiveTable:
    """A picture that stays in place: every arm, and the runs at work."""

    def __init__(self, workers: int, stream: TextIO, later: Sequence[State] = ()) -> None:
        from rich.console import Console
        from rich.live import Live

        self.workers = workers
        self.later = later
        self.live = Live(console=Console(file=stream), auto_refresh=False)

    def __enter__(self) -> "LiveTable":
        self.live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.live.__exit__(kind, error, traceback)

    def __call__(self, states: Sequence[State]) -> None:
        """Draw it anew."""
        left = time_left(states, self.workers, self.later)
        self.live.update(picture([*states, *self.later], left), refresh=True)


def time_left(states: Sequence[State], workers: int, later: Sequence[State] = ()) -> float | None:
    """Seconds until every job has ended, or None before any pace is known.

    A job that does not know its own is taken to have the mean pace of its arm's jobs that do, else
    of all that do; a waiting one begins on the first free worker, the `later` ones when all others
    have ended.
    """
    running = [s for s in states if s.status == "running"]
    waiting = [s for s in states if s.status == "waiting"]
    lasted = [(s, s.seconds + s.seconds_left) for s in states if s.seconds_left is not None]
    lasted += [(s, s.seconds) for s in states if s.status == "done"]
    if not lasted or not (running or waiting):
        return None
    slots = [
        max(0.0, _expected(s, lasted) - s.seconds) if s.seconds_left is None else s.seconds_left
        for s in running
    ]
    slots += [0.0] * (workers - len(running))
    turns = ((slots, waiting), ([0.0] * workers, later))
    return sum(_last(free, [_expected(s, lasted) for s in turn]) for free, turn in turns)


def _last(slots: list[float], lasts: Sequence[float]) -> float:
    """When the last of some jobs ends that begin in their order as `slots` become free."""
    heapq.heapify(slots)
    for seconds in lasts:
        heapq.heappush(slots, heapq.heappop(slots) + seconds)
    return max(slots)


def _expected(state: State, lasted: Sequence[tuple[State, float]]) -> float:
    """How long a job takes from its start, by the paces of those whose time is known."""
    arm = state.job.arm
    known = [pair for pair in lasted if arm is not None and pair[0].job.arm == arm] or lasted
    paces = [seconds / (other.job.steps or 1) for other, seconds in known]
    return sum(paces) / len(paces) * (state.job.steps or 1)


def _news(state: State) -> str:
    log = f"log in {state.job.log}"
    fits = len(f"{state.job.name}: started, {log}") <= COLUMNS
    news = {
        "running": f"started, {log}" if fits else f"started,\n  {log}",
        "done": f"finished after {duration(state.seconds)}",
        "failed": f"failed: {state.error}",
        "stopping": "saving its state; Ctrl-C again gives that up",
    }
    return news.get(state.status, state.status)


def _running(state: State) -> str:
    """A running job in a line of COLUMNS at most: without a long name's middle, or its pace."""
    figures = _figures(state)
    line = f"{state.job.name}: {', '.join(figures)}"
    while len(line) > COLUMNS and len(figures) > 2:
        line = f"{cropped(state.job.name)}: {', '.join(figures)}"
        figures.pop(-2)
    return line


def _figures(state: State) -> list[str]:
    if not state.step:
        return ["starting"]
    figures = [f"step {state.step:,}" + (f" of {state.job.steps:,}" if state.job.steps else "")]
    if state.loss is not None:
        figures.append(f"loss {state.loss:.3f}")
    if state.tokens_per_second is not None:
        figures.append(f"{state.tokens_per_second:,.0f} tokens/s")
    if state.step == state.job.steps:
        figures.append("finishing")
    elif state.seconds_left is not None:
        figures.append(f"{duration(state.seconds_left)} left")
    return figures
