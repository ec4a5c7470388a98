"""The page's figures as pictures that stand still: SVG and PNG for papers, and for print."""

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.report.curves import COLOURS, MARKERS
from unitsphere.report.page.parts import Figure, Series
from unitsphere.report.page.thin import smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SMOOTHING = 0.9
"""Weight of the past in the strong line of a noisy curve, its raw line pale behind."""
NOISY = 60
"""Points from which a curve is smoothed."""
MARKED = 40
"""Points up to which each has a marker."""
MOST_NAMED = 12
"""Lines that a legend names."""


def write_stills(figures: list[Figure], folder: Path) -> dict[str, dict[str, str]]:
    """Draw each figure as FOLDER/NAME.svg and .png; the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, dict[str, str]] = {}
    for figure in figures:
        paths[figure.name] = {}
        for form in ("svg", "png"):
            path = folder / f"{file_name(figure)}.{form}"
            path.write_bytes(still(figure, form))
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
    """The figure over the first choice of its axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawn = Drawing(figsize=(6.4, 3.8), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots()
    axis, label = next(iter(figure.xs.items()))
    named = set()
    for series in figure.series:
        name = series.group or series.name
        draw_series(axes, series, axis, figure, first=name not in named)
        named.add(name)
    axes.set_xscale("log" if figure.log_x and can_be_log(figure, axis) else "linear")
    axes.set_yscale("log" if figure.log_y else "linear")
    if figure.ticks:
        axes.set_xticks(list(figure.ticks), [plain(name) for name in figure.ticks.values()])
        axes.tick_params(
            axis="x", rotation=30 if len("".join(figure.ticks.values())) > 40 else 0, labelsize=8
        )
    axes.set_xlabel(plain(label))
    axes.set_ylabel(plain(figure.y))
    axes.set_title(plain(figure.title), fontsize=11, loc="left")
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(named) > 1:
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[:MOST_NAMED], names[:MOST_NAMED], frameon=False, fontsize=8)
    return drawn


def draw_series(axes: "Axes", series: Series, axis: str, figure: Figure, first: bool) -> None:
    """A line or points, its band or bars; a noisy one pale, with a smooth one before it."""
    colour = COLOURS[series.colour % len(COLOURS)]
    marker = MARKERS[series.colour % len(MARKERS)]
    x = list(series.x[axis])
    y = [float("nan") if value is None else value for value in series.y]
    if figure.log_y:
        y = [value if value > 0 else float("nan") for value in y]
    label = plain(series.group or series.name) if first else None
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
