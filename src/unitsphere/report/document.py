"""What a report consists of: a page of sections, with tables, figures and text as plain values.

The kinds of run and study build pages (`unitsphere.report.kinds`); the renderers draw them
(`unitsphere.report.render`). Text is text: nothing here is markup, and every renderer escapes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from unitsphere.report.numbers import NO_NUMBER, round_off, sort_value

Number = int | float | None
Style = Literal[
    "line",
    "both",
    "pale",
    "dashed",
    "dotted",
    "stairs",
    "points",
    "dots",
    "hollow",
    "star",
    "cross",
]
"""How a series is drawn: as a line, as a line with markers, or as separate markers."""
POINTS = ("points", "dots", "hollow", "star", "cross")
"""The styles without a line."""


@dataclass(frozen=True)
class Series:
    """A line or a cloud of points.

    Attributes:
        name: what it shows.
        x: its places for each choice of the horizontal axis ("step", "tokens", …), rising.
        y: its values; None where there is none.
        colour: its place in the palette, the same for everything that belongs to an arm.
        smooth: whether the reader may smooth it.
        means: what a smoothed line is made of instead of y, where y has only some of its values.
        low, high: a band around it, or a bar at each point of a cloud.
        inner: the ends of a thicker bar within the bar, as of a box plot.
        group: its name in the legend, where several series share one.
        panel: the small plot that it belongs to, where a figure has several.
        shade: instead of a colour, how far it is along a sequence of colours: 0 first, 1 last.
    """

    name: str
    x: Mapping[str, Sequence[float]]
    y: Sequence[Number]
    colour: int = 0
    style: Style = "line"
    smooth: bool = False
    means: Sequence[Number] | None = None
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    group: str = ""
    panel: str = ""
    inner: tuple[Sequence[Number], Sequence[Number]] | None = None
    shade: float | None = None

    @property
    def legend(self) -> str:
        """Its name in the legend."""
        return self.group or self.name

    @property
    def column(self) -> str:
        """The head of its column in a table: its name, after that of the panel unless it has it."""
        own = self.name.partition(", ")[0]
        return self.name if self.panel in ("", own) else f"{self.panel}, {self.name}"


@dataclass(frozen=True)
class Mark:
    """A horizontal arrow between two curves at height y, with a text above it.

    x: its two ends for each choice of the horizontal axis. group: the line that it belongs to.
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
"""Lines of one plot; more become small plots side by side, one line each."""
MOST_BEHIND = 12
"""The most lines for which each small plot shows the other lines pale behind its own."""


@dataclass(frozen=True)
class Figure:
    """A plot, or small plots side by side.

    Attributes:
        name: of its files; unique on the page.
        y: label of the vertical axis.
        xs: the choices of the horizontal axis with their labels; the first is shown.
        caption: what there is to see, in a sentence.
        data: the command that made the data.
        ticks: names at places of the horizontal axis.
        places: where the ticks of a horizontal axis of numbers stand.
        marks: arrows between the lines.
        guides: dotted vertical lines at these places.
        level: a dashed horizontal line at this height.
        limits: the lowest and highest value to show; by default all of them.
        same_axes: whether named panels have the same axes.
        ends: in a picture, write each name at the end of its line instead of in a legend.
        printed: whether the HTML page contains it as a picture too, for print.
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
    guides: Sequence[float] = ()
    level: float | None = None
    limits: tuple[float, float] | None = None
    same_axes: bool = False
    ends: bool = False
    printed: bool = True

    @property
    def alike(self) -> bool:
        """Whether its panels show one quantity, and so have the same axes."""
        return self.same_axes or not any(series.panel for series in self.series)

    def panels(self) -> list[Panel]:
        """Its small plots: those that its series name, or one per line where there are many."""
        if any(series.panel for series in self.series):
            titles = dict.fromkeys(series.panel for series in self.series)
            return [Panel(t, [s for s in self.series if s.panel == t]) for t in titles]
        names = list(dict.fromkeys(series.legend for series in self.series))
        if len(names) <= MOST_LINES:
            return [Panel("", self.series)]
        shown = self.series if len(names) <= MOST_BEHIND else []
        return [
            Panel(
                name,
                [series for series in self.series if series.legend == name],
                [s for s in shown if s.legend != name and s.style not in POINTS],
            )
            for name in names
        ]


@dataclass(frozen=True)
class Figures:
    """Plots that share the choice of the axis, smoothing and (unless `apart`) the zoom.

    apart: their horizontal axes show different things. files: the pictures that a study writes into
    its folder, with these plots side by side under `title`, `columns` in a row.
    """

    kind: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    apart: bool = False
    files: Sequence[str] = ()
    title: str = ""
    columns: int = 3


@dataclass(frozen=True)
class Table:
    """Rows of cells. A column of numbers is aligned to the right, and sorts by its numbers.

    plain: a list of keys in its own order, which a reader does not sort. brief: the columns that a
    terminal shows, by default all. most: the rows that a terminal shows.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    plain: bool = False
    brief: Sequence[int] = ()
    most: int = 0

    def numeric(self, column: int) -> bool:
        """Whether all cells of a column have a number, apart from those that say there is none."""
        said = [row[column] for row in self.rows if row[column] not in NO_NUMBER]
        return bool(said) and all(sort_value(cell) is not None for cell in said)

    def numeric_columns(self) -> list[bool]:
        """`numeric` of every column."""
        return [self.numeric(column) for column in range(len(self.columns))]


@dataclass(frozen=True)
class Text:
    """Paragraphs, or a list of lines."""

    kind: ClassVar[str] = "text"
    lines: Sequence[str]
    listed: bool = False


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote, with the run and the step as its title."""

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
    """Blocks that the reader opens with a click."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Playground:
    """Models with which a reader of the HTML page writes: what static/model.js takes of each."""

    kind: ClassVar[str] = "playground"
    models: Sequence[Mapping[str, Any]]


Block = Figures | Table | Text | Samples | Commands | Folded | Playground


@dataclass(frozen=True)
class Section:
    """A part of the page with its heading; `name` is its anchor.

    detail: only the HTML page shows it, as curves and settings; not a study's results.md.
    """

    name: str
    title: str
    blocks: Sequence[Block]
    intro: str = ""
    detail: bool = False


@dataclass(frozen=True)
class Page:
    """All of it: the answer in a sentence first, with what limits it (`caveats`) beneath.

    facts: short figures with a name. unfinished: what is not trained yet, in a few words; empty if
    all is. provenance: where a study's figures come from: command, commit and machine.
    """

    title: str
    kind: str
    answer: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    caveats: Sequence[str] = ()
    unfinished: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def blocks(self) -> list[Block]:
        """Every block in the page's order, those in folded ones too."""
        return [b for section in self.sections for b in opened(section.blocks)]

    def with_section(self, section: Section) -> "Page":
        """The page with another part before its settings, in place of one of the same name."""
        others = [each for each in self.sections if each.name != section.name]
        place = next((i for i, each in enumerate(others) if each.name == "settings"), len(others))
        return replace(self, sections=[*others[:place], section, *others[place:]])

    def figures(self) -> list[Figure]:
        """Every plot, in the page's order."""
        return [f for block in self.blocks() if isinstance(block, Figures) for f in block.figures]


def opened(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, with what is folded in the place of the fold."""
    found: list[Block] = []
    for block in blocks:
        found += opened(block.blocks) if isinstance(block, Folded) else [block]
    return found


def banded(
    name: str,
    axis: str,
    x: Sequence[float],
    y: Sequence[Number],
    colour: int,
    low: Sequence[Number] | None = None,
    high: Sequence[Number] | None = None,
    style: Style = "both",
    group: str = "",
) -> Series:
    """A series over one axis, in the order of x, with a band where one is given."""
    order = sorted(range(len(x)), key=lambda place: x[place])

    def sort(values: Sequence[Number]) -> list[Number]:
        return [round_off(values[place]) for place in order]

    xs = {axis: [float(x[place]) for place in order]}
    lows, highs = (None if each is None else sort(each) for each in (low, high))
    return Series(name, xs, sort(y), colour, style, low=lows, high=highs, group=group)
