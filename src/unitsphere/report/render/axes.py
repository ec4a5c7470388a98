"""One panel of a picture with matplotlib: its lines and points, marks, ticks and names.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Each also has a
marker, and those beyond the sixth repeat the colours with dashes.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unitsphere.report.document import POINTS, Figure, Mark, Number, Panel, Series
from unitsphere.report.numbers import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":")
SMOOTHING = 0.9
"""Weight of the past in the strong line of a noisy curve, with its raw line pale behind."""
NOISY = 60
"""Points from which a curve is smoothed."""
MARKED = 40
"""Points up to which each has a marker."""
MOST_TICKS = 8
"""Ticks of an axis whose names are numbers."""
NAME_SPACING = 0.06
"""Names closer than this part of the axis' height would overlap."""


def draw_panel(axes: "Axes", panel: Panel, figure: Figure, small: bool) -> None:
    """Draw a panel: the other panels' lines pale, its own, and what explains them."""
    axis = next(iter(figure.xs))
    for series in panel.behind:
        draw_pale(axes, series, axis)
    named: set[str] = set()
    for series in panel.series:
        if series.style == "pale":
            draw_pale(axes, series, axis)
            continue
        name = plain(series.legend)
        name = f" {name}" if name.startswith("_") else name  # a legend leaves "_name" out
        label = None if series.legend in named else name
        draw_series(axes, series, axis, figure.log_y, label)
        named.add(series.legend)
    axes.set_xscale("log" if figure.log_x and all_positive(figure, axis) else "linear")
    axes.set_yscale("log" if figure.log_y and any_positive(panel) else "linear")
    if figure.limits is not None:
        axes.set_ylim(*figure.limits)
    for place in figure.guides:
        axes.axvline(place, color="0.5", linestyle=":", linewidth=1.2)
    if figure.level is not None:
        axes.axhline(figure.level, color="black", linewidth=0.8, linestyle="--")
    for mark in figure.marks:
        if axis in mark.x and (mark.group in named or not small):
            draw_mark(axes, mark, axis)
    draw_ticks(axes, figure, axis, small)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if figure.ends:
        name_ends(axes, panel.series, axis)


def any_positive(panel: Panel) -> bool:
    """Whether a line has a value above 0: matplotlib has no ticks for a log axis without one."""
    lines = (*panel.behind, *panel.series)
    return any(value is not None and value > 0 for line in lines for value in line.y)


def draw_pale(axes: "Axes", series: Series, axis: str) -> None:
    """Draw a line behind the others."""
    axes.plot(
        list(series.x[axis]), np.array(series.y, float), color="#d4d4d4", linewidth=0.8, zorder=1
    )


def draw_series(
    axes: "Axes", series: Series, axis: str, log_y: bool, label: str | None = None
) -> None:
    """Draw a line or points with its band or bars; a noisy line pale, its smooth one strong."""
    colour, marker = colour_of(series), MARKERS[series.colour % len(MARKERS)]
    x, y = list(series.x[axis]), np.array(series.y, float)
    if log_y:
        y = np.where(y > 0, y, np.nan)
    draw_spread(axes, series, x, colour)
    look: dict[str, Any] = {"color": colour, "label": label}
    if series.style in POINTS:
        face = {"markerfacecolor": "white", "markersize": 3.5} if series.inner else {}
        axes.plot(x, y, **look | looks_of_points(series.style, marker) | face)
    elif series.style == "stairs":
        axes.step(x, y, where="post", linewidth=1.3, **look)
    elif series.style in ("dashed", "dotted"):
        dots = "." if series.style == "dotted" and len(y) <= MARKED else None
        line = "--" if series.style == "dashed" else ":"
        axes.plot(x, y, line, marker=dots, linewidth=1.2, **look)
    elif series.smooth and len(y) > NOISY:
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.3)
        means = series.y if series.means is None else series.means
        axes.plot(x, np.array(smoothed(means, SMOOTHING), float), linewidth=1.6, **look)
    else:
        dots = marker if len(y) <= MARKED else None
        line = LINES[series.colour // len(COLOURS) % len(LINES)]
        axes.plot(x, y, line, marker=dots, markersize=4, linewidth=1.6, **look)


def looks_of_points(style: str, marker: str) -> dict[str, Any]:
    """How matplotlib draws each style of points."""
    looks: dict[str, dict[str, Any]] = {
        "points": {"marker": marker, "markersize": 5},
        "dots": {"marker": ".", "markersize": 4, "alpha": 0.5},
        "hollow": {"marker": marker, "markersize": 9, "fillstyle": "none"},
        "star": {"marker": "*", "markersize": 11, "markeredgecolor": "black", "zorder": 4},
        "cross": {"marker": "x", "markersize": 8, "clip_on": False},
    }
    return {"linestyle": "none"} | looks[style]


def colour_of(series: Series) -> Any:
    """The colour of its arm; of a shade viridis from light to dark, without the yellow end."""
    if series.shade is None:
        return COLOURS[series.colour % len(COLOURS)]
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.85 * (1 - series.shade))


def draw_spread(axes: "Axes", series: Series, x: list[float], colour: Any) -> None:
    """Draw a band along a line or a bar at each point; nothing where an end is missing."""
    for pair, wide in (((series.low, series.high), 1.2), (series.inner or (None, None), 4.0)):
        ends = [
            (place, low, high)
            for place, low, high in zip(x, pair[0] or (), pair[1] or (), strict=False)
            if low is not None and high is not None
        ]
        if not ends:
            continue
        places, lows, highs = (list(part) for part in zip(*ends, strict=True))
        if series.style in POINTS:
            axes.vlines(places, lows, highs, color=colour, linewidth=wide)
        else:
            axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)


def draw_mark(axes: "Axes", mark: Mark, axis: str) -> None:
    """Draw a horizontal arrow between two curves, its text in the middle above it."""
    start, end = mark.x[axis]
    colour = COLOURS[mark.colour % len(COLOURS)]
    arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, mark.y), (start, mark.y), arrowprops=arrow, zorder=4)
    middle = (start * end) ** 0.5 if axes.get_xscale() == "log" else (start + end) / 2
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


def name_ends(axes: "Axes", series: Sequence[Series], axis: str) -> None:
    """Write each line's name and last value at its end, moved apart where they would overlap."""
    lines: dict[str, Series] = {}
    for each in series:
        if each.style not in POINTS:
            lines.setdefault(each.legend, each)
    ends = [
        (line, line.x[axis][-1], last)
        for line in lines.values()
        if (last := line.y[-1]) is not None
    ]
    if not ends:
        return
    right = max(x for _, x, _ in ends)
    log = axes.get_xscale() == "log"
    axes.set_xlim(right=right * 1.6 if log else right + 0.28 * (right - axes.get_xlim()[0]))
    low, high = axes.get_ylim()
    room = NAME_SPACING * (high - low)
    heights = apart([y for _, _, y in ends], room, low + room / 2)
    for (line, x, y), height in zip(ends, heights, strict=True):
        thread = {"arrowstyle": "-", "color": colour_of(line), "linewidth": 0.6, "linestyle": ":"}
        axes.annotate(
            f"{plain(line.legend)} {y:.4g}",
            xy=(x, y),
            xytext=(right * 1.03, height),
            color=colour_of(line),
            fontsize=8,
            va="center",
            arrowprops=thread if x < 0.97 * right else None,
        )


def apart(heights: Sequence[float], room: float, lowest: float = -math.inf) -> list[float]:
    """Heights at least `room` apart, none below `lowest`, nearest to the given by least squares."""
    from scipy.optimize import isotonic_regression

    order = sorted(range(len(heights)), key=heights.__getitem__)
    if not order:
        return []
    level = [heights[index] - place * room for place, index in enumerate(order)]
    moved = isotonic_regression(level).x.clip(lowest)
    found = {index: float(moved[place]) + place * room for place, index in enumerate(order)}
    return [found[index] for index in range(len(heights))]


def draw_ticks(axes: "Axes", figure: Figure, axis: str, small: bool) -> None:
    """Set the ticks: names, given places, or plain numbers."""
    axes.tick_params(labelsize=7 if small else 9, labelbottom=True)
    names: list[str] = []
    if figure.ticks:
        numbered = all(name.isdigit() for name in figure.ticks.values())
        every = -(-len(figure.ticks) // MOST_TICKS) if numbered else 1
        names = [plain(name) for name in figure.ticks.values()][::every]
        axes.set_xticks(list(figure.ticks)[::every], names)
    elif axis in figure.places:
        places = list(figure.places[axis])
        names = [compact(place, 3) for place in places]
        axes.set_xticks(places, names)
        axes.set_xticks([], minor=True)
    if len("".join(names)) > (16 if small else 48):
        axes.tick_params(axis="x", rotation=35, labelsize=6 if small else 8)
        for text in axes.get_xticklabels():
            text.set(horizontalalignment="right", rotation_mode="anchor")


def plain_ticks(axes: "Axes") -> None:
    """Set plain numbers on both axes of a plot whose lines are drawn; ticks that were set stay.

    A logarithmic axis has them at 1, 2 and 5, or at decades.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_locator(), FixedLocator):
            continue
        if axis.get_scale() == "log":
            axis.set_major_locator(FixedLocator(log_places(*sorted(axis.get_view_interval()))))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: compact(value))


def log_places(low: float, high: float) -> Sequence[float]:
    """Places of the ticks between two numbers above 0: decades, 1, 2 and 5, or equal steps."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    for factors in ((1,), (1, 2, 5)):
        places = LogLocator(subs=factors, numticks=99).tick_values(low, high)
        inside = [float(place) for place in places if low <= place <= high]
        if len(inside) > 2:
            return inside
    places = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(place) for place in places if low <= place <= high]


def smoothed(y: Sequence[Number], weight: float) -> list[Number]:
    """An exponential moving average with the bias of its start corrected, as in Adam.

    weight: of the past, from 0 to 1. None stays None.
    """
    mean, total = 0.0, 0.0
    found: list[Number] = []
    for value in y:
        if value is None:
            found.append(None)
            continue
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        found.append(mean / total)
    return found


def all_positive(figure: Figure, axis: str) -> bool:
    """Whether every place on an axis is above 0."""
    return all(place > 0 for series in figure.series for place in series.x[axis])


def plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics."""
    return text.replace("$", r"\$")


def wrapped(text: str, width: int) -> str:
    """Plain text in lines of at most `width` characters."""
    return textwrap.fill(plain(text), width)
