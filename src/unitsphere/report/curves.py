"""Validation curves as a picture: bits per byte against steps and against time.

Colours are Okabe and Ito's, which colour-blind readers tell apart; each line also has a marker of
its own and its name at its end, so the picture needs no legend and survives grey print.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.files import aside
from unitsphere.report.render.axes import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":")
# The loss of the first steps would press what matters into the bottom of the picture.
SKIPPED = 0.15
# Two names closer than this part of the axis' height would overlap.
NAME_SPACING = 0.055


@dataclass(frozen=True)
class Curve:
    """One arm's evaluations, in order: step, seconds since the start, validation bits per byte."""

    name: str
    steps: Sequence[int]
    seconds: Sequence[float]
    bits_per_byte: Sequence[float]


def line_style(index: int) -> str:
    """Of line number `index`: those beyond the sixth have the first ones' colours, and dashes."""
    return LINES[index // len(COLOURS) % len(LINES)]


def apart(heights: Sequence[float], room: float) -> list[float]:
    """The heights nearest to the given ones, by squares, that are at least `room` apart."""
    from scipy.optimize import isotonic_regression

    order = sorted(range(len(heights)), key=heights.__getitem__)
    if not order:
        return []
    level = [heights[index] - place * room for place, index in enumerate(order)]
    moved = isotonic_regression(level).x
    found = {index: float(moved[place]) + place * room for place, index in enumerate(order)}
    return [found[index] for index in range(len(heights))]


def validation_curves(curves: Sequence[Curve], title: str, path: Path) -> Path:
    """Draw the curves side by side over steps and over minutes, write a PNG, return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, curves, [curve.steps for curve in curves], "optimizer steps (equal tokens)")
    minutes = [[second / 60 for second in curve.seconds] for curve in curves]
    _panel(right, curves, minutes, "minutes of training")
    left.set_ylabel("validation bits per byte")
    left.set_ylim(*_limits(curves))
    for axes, xs in ((left, [c.steps for c in curves]), (right, minutes)):
        _name_lines(axes, curves, [x[-1] for x in xs])
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path


def _panel(axes: "Axes", curves: Sequence[Curve], xs: Sequence[Sequence[float]], x: str) -> None:
    for index, (curve, values) in enumerate(zip(curves, xs, strict=True)):
        axes.plot(
            values,
            curve.bits_per_byte,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
        )
    axes.set_xlabel(x)
    # Room on the right for the names.
    axes.set_xlim(0, 1.22 * max(values[-1] for values in xs))
    plain_ticks(axes)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of bits per byte to show: from each curve's early part on, with a margin."""
    shown = [
        bits
        for curve in curves
        for step, bits in zip(curve.steps, curve.bits_per_byte, strict=True)
        if step >= SKIPPED * curve.steps[-1]
    ]
    margin = max(0.06 * (max(shown) - min(shown)), 0.01)
    return min(shown) - margin, max(shown) + margin


def _name_lines(axes: "Axes", curves: Sequence[Curve], ends: Sequence[float]) -> None:
    """Write each arm's name and last value at its line's end, moved apart where they collide."""
    low, high = axes.get_ylim()
    lasts = [curve.bits_per_byte[-1] for curve in curves]
    heights = apart(lasts, NAME_SPACING * (high - low))
    for index, (curve, last, height) in enumerate(zip(curves, lasts, heights, strict=True)):
        axes.annotate(
            f"{curve.name} {last:.3f}",
            xy=(ends[index], last),
            xytext=(max(ends) * 1.03, height),
            color=COLOURS[index % len(COLOURS)],
            fontsize=9,
            va="center",
            arrowprops=_thread(index) if ends[index] < 0.97 * max(ends) else None,
        )


def _thread(index: int) -> dict[str, object]:
    """A thin line from a curve that ends early to its name."""
    colour = COLOURS[index % len(COLOURS)]
    return {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "linestyle": ":"}
