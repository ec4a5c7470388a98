"""A ladder's pictures: the grid's losses, points with the laws through them and their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS, MARKERS
from unitsphere.report.render.axes import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.0
"""Inches of a panel."""


@dataclass(frozen=True)
class LawLine:
    """An arm's points, and the law through them where there is one: a line and its interval.

    left_out: points that the law does not rest on.
    """

    name: str
    points: Sequence[tuple[float, float]]
    left_out: Sequence[tuple[float, float]] = ()
    line: Sequence[tuple[float, float]] = ()
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True)
class LawPanel:
    """Panels are drawn side by side: the law of each arm, on logarithmic axes."""

    x: str
    y: str
    lines: Sequence[LawLine]


@dataclass(frozen=True)
class BatchCurve:
    """Losses of a batch over its rates, and the lowest point of their interpolant."""

    batch: int
    rates: Sequence[float]
    losses: Sequence[float]
    lowest: tuple[float, float]


@dataclass(frozen=True)
class GridPanel:
    """The batches of an arm at a size."""

    title: str
    curves: Sequence[BatchCurve] = field(default_factory=list)


def law_picture(panels: Sequence[LawPanel], path: Path) -> Path:
    """Draw the panels side by side, write a PNG, return its path."""
    figure, row = canvas(1, len(panels))
    for axes, panel in zip(row, panels, strict=True):
        for index, line in enumerate(panel.lines):
            draw_law(axes, line, COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)])
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_ticks(axes)
        dress(axes, panel.x, panel.y)
    if any(line.points or line.left_out for line in panels[0].lines):
        row[0].legend(frameon=False, fontsize=9)
    return save(figure, path)


def draw_law(axes: "Axes", line: LawLine, colour: str, marker: str) -> None:
    """Points, hollow where the law leaves them out; the law dashed, its interval as a band."""
    for points, fill in ((line.points, colour), (line.left_out, "none")):
        if points:
            xs, ys = zip(*points, strict=True)
            kept = fill != "none" or not line.points
            label = line.name if kept else None
            axes.scatter(xs, ys, color=colour, marker=marker, facecolor=fill, label=label, zorder=3)
    if line.line:
        axes.plot(*zip(*line.line, strict=True), "--", color=colour, linewidth=1.2)
    if line.band:
        xs, lows, highs = zip(*line.band, strict=True)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0)


def grid_picture(panels: Sequence[GridPanel], columns: int, path: Path) -> Path:
    """Draw a panel for each arm and size, `columns` in a row; each batch's best rate is a star."""
    rows = -(-len(panels) // columns)
    figure, every = canvas(rows, columns)
    for axes, panel in zip(every, panels, strict=False):
        for index, curve in enumerate(panel.curves):
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(curve.rates, curve.losses, "o-", color=colour, markersize=3, linewidth=1)
            axes.plot(*curve.lowest, "*", color=colour, markersize=11, markeredgecolor="black")
            axes.plot([], [], color=colour, label=f"{curve.batch:,} tokens per step")
        axes.set_xscale("log")
        rates = sorted({rate for curve in panel.curves for rate in curve.rates})
        axes.set_xticks(rates, [f"{rate:.3g}" for rate in rates], fontsize=7, rotation=45)
        axes.set_xticks([], minor=True)
        plain_ticks(axes)
        axes.set_title(panel.title, fontsize=10)
        dress(axes, "learning rate", "loss (nats per token)")
        if panel.curves:
            axes.legend(frameon=False, fontsize=8)
    return save(figure, path)


def canvas(rows: int, columns: int) -> "tuple[Figure, list[Axes]]":
    """A figure and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH * columns, 3.4 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def dress(axes: "Axes", x: str, y: str) -> None:
    """Labels, grid and spines."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: "Figure", path: Path) -> Path:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path
