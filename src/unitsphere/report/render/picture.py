"""The page's figures as pictures that stand still: SVG and PNG for papers, and for print."""

import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import write_bytes
from unitsphere.report.curves import COLOURS, MARKERS
from unitsphere.report.document import Figure, Mark, Panel, Series
from unitsphere.report.render.ticks import plain_ticks, set_places
from unitsphere.report.sections.thin import smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SMOOTHING = 0.9
"""Weight of the past in the strong line of a noisy curve, its raw line pale behind."""
NOISY = 60
"""Points from which a curve is smoothed."""
MARKED = 40
"""Points up to which each has a marker."""
MOST_LAYERS = 8
"""Ticks of an axis of layers."""
COLUMNS = 3
"""Panels side by side."""


def write_stills(figures: list[Figure], folder: Path) -> dict[str, dict[str, str]]:
    """Draw each figure as FOLDER/NAME.svg and .png; the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, dict[str, str]] = {}
    for figure in figures:
        paths[figure.name] = {}
        for form in ("svg", "png"):
            path = folder / f"{file_name(figure)}.{form}"
            write_bytes(path, still(figure, form))
            paths[figure.name][form] = str(path)
    return paths


def file_name(figure: Figure) -> str:
    """A figure's name as that of a file: no part of it leads elsewhere."""
    return re.sub(r"[^\w.-]+", "-", figure.name).strip(".-") or "figure"


def still(figure: Figure, form: str = "svg") -> bytes:
    """A figure as the bytes of an SVG or a PNG, the same for the same figure."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script of its own
        # Text stays text in an SVG: it can be searched, and set in a paper's own type.
        matplotlib.rc("svg", fonttype="none", hashsalt=figure.name)
        matplotlib.rc("font", family="sans-serif", size=10)
        drawn = draw(figure)
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else None
        drawn.savefig(buffer, format=form, metadata=metadata, dpi=200)
    return buffer.getvalue()


def draw(figure: Figure) -> "Drawing":
    """The figure over the first choice of its axis; its panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    panels = figure.panels()
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (6.4, 3.8) if len(panels) == 1 else (2.6 * columns + 0.6, 2.0 * rows + 0.8)
    drawn = Drawing(figsize=size, layout="constrained")
    FigureCanvasAgg(drawn)
    alike = figure.alike
    grid = list(drawn.subplots(rows, columns, squeeze=False, sharex=alike, sharey=alike).flat)
    for axes, panel in zip(grid, panels, strict=False):
        draw_panel(axes, panel, figure)
    for axes in grid[: len(panels)]:
        plain_ticks(axes)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    title = textwrap.fill(plain(figure.title), 70 if len(panels) == 1 else 30 * columns)
    if len(panels) == 1:
        grid[0].set_xlabel(textwrap.fill(plain(next(iter(figure.xs.values()))), 80))
        grid[0].set_ylabel(textwrap.fill(plain(figure.y), 40))
        grid[0].set_title(title, fontsize=11, loc="left")
    else:
        drawn.supxlabel(plain(next(iter(figure.xs.values()))), fontsize=9)
        drawn.supylabel(textwrap.fill(plain(figure.y), 24 * rows), fontsize=9)
        drawn.suptitle(title, fontsize=11)
        if not alike:
            name_panels_lines(drawn, grid[: len(panels)])
    return drawn


def is_numbered(figure: Figure) -> bool:
    """Whether the names of its ticks are numbers, as those of layers, of which some are enough."""
    return all(name.isdigit() for name in figure.ticks.values())


def draw_panel(axes: "Axes", panel: Panel, figure: Figure) -> None:
    """A panel: the others' lines pale, its own with their legend, arrows, ticks."""
    axis, small = next(iter(figure.xs)), bool(panel.title)
    for series in panel.behind:
        y = [float("nan") if value is None else value for value in series.y]
        axes.plot(list(series.x[axis]), y, color="#d4d4d4", linewidth=0.8, zorder=1)
    named: set[str] = set()
    for series in panel.series:
        draw_series(axes, series, axis, figure, first=series.legend not in named)
        named.add(series.legend)
    axes.set_xscale("log" if figure.log_x and can_be_log(figure, axis) else "linear")
    axes.set_yscale("log" if figure.log_y else "linear")
    for mark in figure.marks:
        if axis in mark.x and (mark.group in named or not small):
            draw_mark(axes, mark, axis)
    axes.tick_params(labelsize=7 if small else 9, labelbottom=True)
    if figure.ticks:
        every = -(-len(figure.ticks) // MOST_LAYERS) if is_numbered(figure) else 1
        names = [plain(name) for name in figure.ticks.values()][::every]
        turned = len("".join(names)) > (16 if small else 48)
        axes.set_xticks(list(figure.ticks)[::every], names)
        if turned:
            axes.tick_params(axis="x", rotation=35, labelsize=6 if small else 8)
            for text in axes.get_xticklabels():
                text.set(horizontalalignment="right", rotation_mode="anchor")
    elif axis in figure.places:
        set_places(axes, figure.places[axis])
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if small:
        axes.set_title(textwrap.fill(plain(panel.title), 32), fontsize=9)
    elif len(named) > 1:
        axes.legend(frameon=False, fontsize=8)


def name_panels_lines(drawn: "Drawing", grid: "Sequence[Axes]") -> None:
    """One legend beside panels that show the same lines of several quantities."""
    named = {}
    for axes in grid:
        handles, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    if len(named) > 1:
        beside: Any = "outside center right"
        drawn.legend(named.values(), named, loc=beside, frameon=False, fontsize=8)


def draw_mark(axes: "Axes", mark: Mark, axis: str) -> None:
    """A horizontal arrow between two curves, its text in the middle above it."""
    begin, end = mark.x[axis]
    colour = COLOURS[mark.colour % len(COLOURS)]
    arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, mark.y), (begin, mark.y), arrowprops=arrow, zorder=4)
    middle = (begin * end) ** 0.5 if axes.get_xscale() == "log" else (begin + end) / 2
    level = sum(bool(text.get_text()) for text in axes.texts)
    axes.annotate(
        plain(mark.text),
        (middle, mark.y),
        (0, 3 + 10 * level),
        textcoords="offset points",
        ha="center",
        color=colour,
        fontsize=8,
        fontweight="bold",
    )


def draw_series(axes: "Axes", series: Series, axis: str, figure: Figure, first: bool) -> None:
    """A line or points, its band or bars; a noisy one pale, with a smooth one before it."""
    colour = COLOURS[series.colour % len(COLOURS)]
    marker = MARKERS[series.colour % len(MARKERS)]
    x = list(series.x[axis])
    y = [float("nan") if value is None else value for value in series.y]
    if figure.log_y:
        y = [value if value > 0 else float("nan") for value in y]
    label = plain(series.legend) if first else None
    if series.low is not None and series.high is not None:
        draw_spread(axes, series, x, colour)
    if series.style == "points":
        axes.plot(x, y, marker, color=colour, markersize=5, label=label)
    elif series.style == "dashed":
        axes.plot(x, y, "--", color=colour, linewidth=1.2, label=label)
    elif series.smooth and len(y) > NOISY:
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.3)
        smooth = [float("nan") if v is None else v for v in smoothed(series.y, SMOOTHING)]
        axes.plot(x, smooth, color=colour, linewidth=1.6, label=label)
    else:
        dots = marker if len(y) <= MARKED else None
        axes.plot(x, y, color=colour, marker=dots, markersize=4, linewidth=1.6, label=label)


def draw_spread(axes: "Axes", series: Series, x: list[float], colour: str) -> None:
    """A band along a line, a bar at each point of a cloud; where an end is missing, nothing."""
    assert series.low is not None
    assert series.high is not None
    ends = [
        (place, low, high)
        for place, low, high in zip(x, series.low, series.high, strict=True)
        if low is not None and high is not None
    ]
    if not ends:
        return
    places, lows, highs = (list(part) for part in zip(*ends, strict=True))
    if series.style == "points":
        axes.vlines(places, lows, highs, color=colour, linewidth=1.2)
    else:
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)


def can_be_log(figure: Figure, axis: str) -> bool:
    """Whether all places on an axis are above 0."""
    return all(place > 0 for series in figure.series for place in series.x[axis])


def plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
