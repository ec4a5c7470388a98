"""The live picture of a study at work, within 80 columns: every arm, and the runs that are trained.

Few jobs have a row each. Of many, an upper table sums up each arm, and a lower one has the runs at
work; the line below counts, and tells of failures.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unitsphere.report.table import duration
from unitsphere.studies.jobs import State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

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
    """A row for each job: bar, step, loss, tokens a second, time left."""
    rows = [
        [cropped(state.job.name), _steps(state), _loss(state), _speed(state), remaining(state)]
        for state in states
    ]
    parts = [(state.step, state.job.steps or 1) for state in states]
    return _table(["run", "step", "loss", "tokens/s", "time left"], rows, parts)


def arms_table(states: Sequence[State]) -> "Table":
    """A row for each arm: the bar of all its steps, and its runs by what became of them."""
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
    return "" if state.loss is None else f"{state.loss:.3f}"


def _speed(state: State) -> str:
    return "" if state.tokens_per_second is None else _short(round(state.tokens_per_second))


def remaining(state: State) -> str:
    """What the last column says of a job."""
    if state.status == "running" and state.step and state.step == state.job.steps:
        return "finishing"
    if state.status == "running":
        return "starting" if state.seconds_left is None else duration(state.seconds_left)
    if state.status == "stopping":
        return "saving"
    return f"done in {duration(state.seconds)}" if state.status == "done" else state.status
