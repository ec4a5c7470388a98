"""Perplexity against context length and against position: a table, and two panels as SVG and PNG.

Colours and markers are those of the other figures; of several seeds the line is the geometric mean
(the mean loss), and the band reaches from the lowest to the highest.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS, MARKERS
from unitsphere.report.render.axes import plain_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 16
"""Positions before it are left out of the picture: few tokens, and the same for every arm."""

Document = Mapping[str, Any]
Points = list[tuple[float, float, float, float]]
"""(x, mean, lowest, highest) of a line."""


def columns(found: Document) -> list[str]:
    """Heads of the table: a column a context."""
    return ["arm", "trained at", *(f"{context:,}" for context in found["contexts"])]


def rows(found: Document) -> list[list[str]]:
    """Perplexity at each context, an arm a row; ± half of what seeds span."""
    cells = []
    for name, arm in found["arms"].items():
        points = by_context(arm, found["contexts"])
        cells.append([name, f"{arm['trained']:,}", *(cell(point) for point in points)])
    return cells


def cell(point: tuple[float, float, float, float]) -> str:
    """A mean perplexity, and half of the distance from the lowest to the highest, if there is."""
    _, mean, low, high = point
    return f"{mean:,.2f}" + (f" ± {(high - low) / 2:,.2f}" if high > low else "")


def by_context(arm: Mapping[str, Any], contexts: Sequence[int]) -> Points:
    """A line over context lengths."""
    runs = [at_contexts(run) for run in arm["runs"]]
    return [
        point(context, [run[context]["loss"] for run in runs]) for context in map(int, contexts)
    ]


def by_position(arm: Mapping[str, Any]) -> Points:
    """A line over the positions of the longest context; a span stands at its last position."""
    longest = [max(at_contexts(run).items())[1]["by_position"] for run in arm["runs"]]
    return [
        point(spans[0]["last"], [span["loss"] for span in spans])
        for spans in zip(*longest, strict=True)
    ]


def at_contexts(run: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """A run's figures by context; JSON makes strings of the keys."""
    return {int(context): figures for context, figures in run["by_context"].items()}


def point(x: float, losses: Sequence[float]) -> tuple[float, float, float, float]:
    """x, and the perplexity of the mean, of the lowest and of the highest loss."""
    mean = sum(losses) / len(losses)
    return x, math.exp(mean), math.exp(min(losses)), math.exp(max(losses))


def context_figure(found: Document, path: Path) -> list[Path]:
    """Draw both panels from the document of `studies.context` as `path`.svg and `path`.png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for index, (name, arm) in enumerate(found["arms"].items()):
        draw(left, by_context(arm, found["contexts"]), index, name)
        draw(right, shown(by_position(arm)), index, name)
    longest = max(map(int, found["contexts"]))
    panel(left, found, "tokens of context", "perplexity over the whole context")
    panel(right, found, f"tokens seen, of a context of {longest:,}", "perplexity at that position")
    left.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(suffix) for suffix in (".svg", ".png")]
    for file in files:
        with aside(file) as drawn:
            figure.savefig(drawn)
    return files


def shown(points: Points) -> Points:
    """What the picture shows of a line over positions: all of it, if that is short."""
    return [point for point in points if point[0] >= SHOWN] or points


def draw(axes: "Axes", points: Points, index: int, name: str) -> None:
    """A line, with a band where seeds differ."""
    x, mean, low, high = zip(*points, strict=True)
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)]
    axes.plot(x, mean, color=colour, marker=marker, markersize=4, linewidth=1.6, label=name)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def panel(axes: "Axes", found: Document, x: str, y: str) -> None:
    """Logarithmic axes, and a dotted line where the training's contexts end."""
    for trained in sorted({arm["trained"] for arm in found["arms"].values()}):
        axes.axvline(trained, color="0.5", linestyle=":", linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain_axis(axes.yaxis)
    axes.set_xlabel(f"{x} (dotted: in training)")
    axes.set_ylabel(y)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
