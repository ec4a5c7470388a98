"""The table of a comparison's arms: for the terminal (rich) and as Markdown, from one source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison, as it is reported.

    `bits_per_byte` is that of the validation split after the last step. `steps_to_baseline` is
    the first evaluation at or below the baseline's last one (None: not reached); nothing is
    interpolated. `ms_per_step` is the median, without evaluations; `seconds` is the whole run.
    """

    name: str
    recipe: str
    run: str
    parameters: int
    lr: float
    steps: int
    tokens: int
    bits_per_byte: float
    steps_to_baseline: int | None
    ms_per_step: float
    seconds: float


def columns(baseline: str | None) -> list[str]:
    """Column heads; a line break marks where a narrow column may fold."""
    reach = [f"steps to\n{baseline}'s\nlast loss"] if baseline else []
    rate, bits = "learning\nrate", "validation\nbits/byte"
    return ["arm", "parameters", rate, bits, *reach, "ms a\nstep", "training\ntime"]


def cells(arm: Arm, baseline: str | None) -> list[str]:
    """One row of the table."""
    steps = "not reached" if arm.steps_to_baseline is None else f"{arm.steps_to_baseline:,}"
    return [
        arm.name,
        f"{arm.parameters:,}",
        f"{arm.lr:g}",
        f"{arm.bits_per_byte:.3f}",
        *([steps] if baseline else []),
        f"{arm.ms_per_step:.0f}",
        duration(arm.seconds),
    ]


def arms_table(arms: Sequence[Arm], baseline: str | None, title: str) -> "Table":
    """A rich table of the arms, at most 80 columns wide; the best bits per byte is bold.

    Without a baseline (its run failed) the column that refers to it is left out.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns(baseline)):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    best = min(arm.bits_per_byte for arm in arms)
    for arm in arms:
        row = cells(arm, baseline)
        if arm.bits_per_byte == best:
            row[3] = f"[bold]{row[3]}[/bold]"
        table.add_row(*row)
    return table


def arms_markdown(arms: Sequence[Arm], baseline: str | None) -> str:
    """The same table in Markdown."""
    head = [" ".join(column.split("\n")) for column in columns(baseline)]
    return markdown(head, [cells(arm, baseline) for arm in arms])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns after the first are aligned to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(row)} |\n" for row in [list(head), rule, *rows])


def duration(seconds: float) -> str:
    """Seconds as `42s`, `3m 05s` or `2h 07m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def short(tokens: int) -> str:
    """A number of tokens in few characters: 63.5k, 1.5M, 2B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)
