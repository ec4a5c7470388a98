"""What a user sees while jobs run: a live table on a terminal, plain lines elsewhere."""

import heapq
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from unitsphere.report.numbers import duration, figure
from unitsphere.studies.core.jobs import Job, State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


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
        self.seen: dict[Path, str] = {}  # by folder: points of one rate have one name
        self.next = time.monotonic() + PLAIN_SECONDS

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.flush()

    def __call__(self, states: Sequence[State]) -> None:
        """Print what is new."""
        for state in states:
            if self.seen.get(state.job.out, "waiting") != state.status:
                self.seen[state.job.out] = state.status
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
        self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.live.stop()

    def __call__(self, states: Sequence[State]) -> None:
        """Draw it again."""
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
    lasted = [
        (s, s.seconds + s.seconds_left - s.overdue) for s in states if s.seconds_left is not None
    ]
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
        figures.append(f"loss {_loss(state)}")
    if state.tokens_per_second is not None:
        figures.append(f"{state.tokens_per_second:,.0f} tokens/s")
    if state.step == state.job.steps:
        figures.append("finishing")
    elif state.seconds_left is not None:
        figures.append(f"{duration(state.seconds_left)} left")
    return figures


COLUMNS = 80
NAME_WIDTH = 24
BAR_WIDTHS = (6, 16)
ROWS = 12
"""A study of more jobs shows its arms and those at work; of these, too, no more than this."""
GAP = 2
"""between columns: the padding, and the box's own"""


def picture(states: Sequence[State], left: float | None) -> "RenderableType":
    """The tables; `left` is the time until all have ended, if it is known."""
    from rich.console import Group
    from rich.text import Text

    last = Text("\n".join(_captions(states, left)), no_wrap=True, overflow="ellipsis")
    if len(states) <= ROWS:
        return Group(runs_table(states), last)
    shown = [s for s in states if s.status in ("running", "stopping")][:ROWS]
    return Group(arms_table(states), runs_table(shown), last)


def runs_table(states: Sequence[State]) -> "Table":
    """A row for each job: bar, step, loss, tokens per second, time left."""
    rows = [
        [cropped(state.job.name), _steps(state), _loss(state), _speed(state), remaining(state)]
        for state in states
    ]
    parts = [(state.step, state.job.steps or 1) for state in states]
    return _table(["run", "step", "loss", "tokens/s", "time left"], rows, parts)


def arms_table(states: Sequence[State]) -> "Table":
    """A row for each arm: the bar of all its steps, and its runs by their state."""
    arms: dict[str, list[State]] = {}
    for state in states:
        arms.setdefault(state.job.arm or state.job.name, []).append(state)
    rows, parts = [], []
    for arm, own in arms.items():
        kinds = _counts(own)
        stopped = kinds["failed"] + kinds["interrupted"]
        numbers = [f"{kinds['done']}/{len(own)}", kinds["running"], kinds["waiting"], stopped]
        rows.append([cropped(arm), *(str(number or "") for number in numbers)])
        ended = [state.status == "done" for state in own]
        steps = [(s.job.steps or 1, s.step) for s in own]
        through = sum(
            total if end else step for end, (total, step) in zip(ended, steps, strict=True)
        )
        parts.append((through, sum(total for total, _ in steps)))
    return _table(["arm", "runs done", "at work", "waiting", "stopped"], rows, parts)


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], parts: Sequence[tuple[int, int]]
) -> "Table":
    """A table whose second column is a bar, of what the other columns leave of the width."""
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    taken = [max(len(row[i]) for row in [heads, *rows]) + GAP for i in range(len(heads))]
    low, high = BAR_WIDTHS
    over = sum(taken) + GAP + low - COLUMNS
    if over > 0:
        names = taken[0] - GAP - over
        rows = [[cropped(row[0], names), *row[1:]] for row in rows]
    width = max(low, min(high, COLUMNS - sum(taken) - GAP))
    for index, head in enumerate([heads[0], "", *heads[1:]]):
        table.add_column(head, justify="right" if index > 1 else "left", no_wrap=True)
    for row, (done, total) in zip(rows, parts, strict=True):
        bar = ProgressBar(total=total, completed=done, width=width)
        table.add_row(Text(row[0]), bar, *row[1:])
    return table


def _captions(states: Sequence[State], left: float | None) -> list[str]:
    """What stands below: time left, how many runs there are of each kind, and what failed."""
    counts = [f"{number} {status}" for status, number in _counts(states).items() if number]
    few = len(states) <= ROWS
    first = [f"about {duration(left)} left"] if left else []
    line = ", ".join(first + ([] if few else counts))
    failed = [s for s in states if s.status == "failed"]
    told = [f"{s.job.name} failed: {s.error}" for s in failed[-3:]]
    return [text for text in [line, *told] if text]


def _counts(states: Sequence[State]) -> Mapping[str, int]:
    kinds = ("done", "running", "stopping", "waiting", "failed", "interrupted")
    return {kind: sum(state.status == kind for state in states) for kind in kinds}


def cropped(name: str, width: int = NAME_WIDTH) -> str:
    """A name with its middle left out if it is long: seeds and sizes stand at its end."""
    half = width // 2
    return name if len(name) <= width else f"{name[: width - half - 1]}…{name[-half:]}"


def _steps(state: State) -> str:
    total = f"/{_short(state.job.steps)}" if state.job.steps else ""
    return _short(state.step) + total


def _short(count: int) -> str:
    return f"{count:,}" if count < 100_000 else f"{count / 1000:,.0f}k"


def _loss(state: State) -> str:
    return "" if state.loss is None else figure(state.loss, ".3f")


def _speed(state: State) -> str:
    return "" if state.tokens_per_second is None else _short(round(state.tokens_per_second))


def remaining(state: State) -> str:
    """The last column of a job."""
    if state.status == "running" and state.step and state.step == state.job.steps:
        return "finishing"
    if state.status == "running":
        return "starting" if state.seconds_left is None else duration(state.seconds_left)
    if state.status == "stopping":
        return "saving"
    return f"done in {duration(state.seconds)}" if state.status == "done" else state.status
