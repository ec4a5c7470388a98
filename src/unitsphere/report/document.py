"""What a report page is made of: plain values, before they become HTML or pictures.

Text is text: nothing here is markup, whatever it holds; the template escapes all of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Style = Literal["line", "points", "dashed", "both"]
Number = int | float | None


@dataclass(frozen=True)
class Series:
    """A line or a cloud of points.

    x: by the key of the axis' choice ("step", "tokens", …), each as long as `y` and rising.
    y: None where there is no number. low, high: a band around it. colour: its place in the
    palette, the same for all that belongs to an arm. smooth: whether smoothing is offered. group:
    what the legend names and hides, the series itself if empty. panel: the small plot that it
    belongs to, where a figure has several.
    """

    name: str
    x: Mapping[str, Sequence[float]]
    y: Sequence[Number]
    colour: int = 0
    style: Style = "line"
    smooth: bool = False
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    group: str = ""
    panel: str = ""

    @property
    def legend(self) -> str:
        """What the legend names it."""
        return self.group or self.name


@dataclass(frozen=True)
class Mark:
    """A horizontal arrow between two curves, from x[0] to x[1] at height y, with a text above.

    x: by the key of the axis' choice, as a series'. group: the line that it belongs to.
    """

    x: Mapping[str, tuple[float, float]]
    y: float
    text: str
    group: str
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """A small plot of a figure; `behind` are the other panels' lines, drawn pale."""

    title: str
    series: Sequence[Series]
    behind: Sequence[Series] = ()


MOST_LINES = 6
"""Lines of one plot; more become small plots side by side, a line each."""
MOST_BEHIND = 12
"""Lines of which each small plot shows the others pale behind its own."""


@dataclass(frozen=True)
class Figure:
    """A plot, or small plots side by side.

    name: of its files, unique on the page. xs: each choice of the axis and its label, the first
    is shown. caption: what is to be seen, in a sentence. data: the command that made the figures.
    ticks: names at places of an axis of words. places: of an axis of numbers, where its ticks
    stand. marks: arrows between the lines. drawn: whether the page holds it drawn, for print.
    """

    name: str
    title: str
    y: str
    xs: Mapping[str, str]
    series: Sequence[Series]
    caption: str = ""
    log_x: bool = False
    log_y: bool = False
    data: str = ""
    ticks: Mapping[float, str] = field(default_factory=dict)
    places: Mapping[str, Sequence[float]] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    drawn: bool = True

    @property
    def alike(self) -> bool:
        """Whether its panels are of one quantity, and so have the same axes."""
        return not any(series.panel for series in self.series)

    def panels(self) -> list[Panel]:
        """Its small plots: those that its series name, or one a line where there are many."""
        names = list(dict.fromkeys(series.legend for series in self.series))
        if not self.alike:
            titles = dict.fromkeys(series.panel for series in self.series)
            return [Panel(t, [s for s in self.series if s.panel == t]) for t in titles]
        if len(names) <= MOST_LINES:
            return [Panel("", self.series)]
        shown = self.series if len(names) <= MOST_BEHIND else []
        return [
            Panel(
                name,
                [series for series in self.series if series.legend == name],
                [series for series in shown if series.legend != name],
            )
            for name in names
        ]


@dataclass(frozen=True)
class Figures:
    """Plots that share their axis' choice, smoothing and, unless they stand apart, zoom.

    apart: their horizontal axes are of different things.
    """

    kind: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    apart: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells. A column of numbers is aligned to the right; each sorts by its number.

    plain: in its own order, without sorting.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    plain: bool = False

    def numeric(self, column: int) -> bool:
        """Whether all of a column's cells that say anything are numbers."""
        said = [row[column] for row in self.rows if row[column] not in NOTHING]
        return bool(said) and all(sort_value(cell) is not None for cell in said)


@dataclass(frozen=True)
class Text:
    """Paragraphs, or a list of lines."""

    kind: ClassVar[str] = "text"
    lines: Sequence[str]
    listed: bool = False


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote: by whom, at which step."""

    title: str
    text: str


@dataclass(frozen=True)
class Samples:
    """Texts side by side."""

    kind: ClassVar[str] = "samples"
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Commands:
    """Command lines to copy: what each does, and the line."""

    kind: ClassVar[str] = "commands"
    commands: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence["Block"]


Block = Figures | Table | Text | Samples | Commands | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with its heading; `name` is its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]
    intro: str = ""


@dataclass(frozen=True)
class Page:
    """All of it. `answer` comes first, `caveats` beneath; facts are short figures with a name.

    unfinished: what is still to come, in a few words; empty when all is done.
    """

    title: str
    kind: str
    answer: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    caveats: Sequence[str] = ()
    unfinished: str = ""

    def figures(self) -> list[Figure]:
        """Every plot, in the page's order."""
        return [f for section in self.sections for f in figures_in(section.blocks)]


def figures_in(blocks: Sequence[Block]) -> list[Figure]:
    """The plots among some blocks, folded ones too."""
    found: list[Figure] = []
    for block in blocks:
        if isinstance(block, Figures):
            found += block.figures
        elif isinstance(block, Folded):
            found += figures_in(block.blocks)
    return found


NOTHING = ("", "–")
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def sort_value(cell: str) -> float | None:
    """The number that a cell begins with ("1,311,880", "1.42 (1.31–1.55)", "1m 29s"), or None."""
    spans = re.fullmatch(r"(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+)s)?", cell)
    if cell and spans and any(spans.groups()):
        return sum(
            int(part or 0) * unit for part, unit in zip(spans.groups(), (3600, 60, 1), strict=True)
        )
    found = NUMBER.match(cell)
    return float(found[0].replace(",", "").replace("−", "-")) if found else None
