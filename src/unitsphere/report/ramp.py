"""What `lr-ramp` found: a table, and the loss against the rate as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS
from unitsphere.report.render.axes import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("arm", "diverges at", "each seed", "after steps", "÷ first")
ABOVE = 3.0
"""Nats above the lowest loss that the picture shows."""


@dataclass(frozen=True)
class RampCurve:
    """One run: rates and smoothed losses of its steps, and where it diverged, if it did."""

    rates: Sequence[float]
    losses: Sequence[float]
    diverged: float | None


def ramp_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Cells of the table, an arm a row, from the study's document."""
    peak, rows = found["peak"], []
    for name, arm in found["arms"].items():
        seeds = [seed for seed in arm["seeds"] if seed["error"] is None]
        above = f"above {peak:g}"
        rate = (
            above if arm["reached_peak"] else "failed" if arm["lr"] is None else f"{arm['lr']:.3g}"
        )
        rows.append(
            [
                name,
                rate,
                ", ".join(above if seed["lr"] is None else f"{seed['lr']:.3g}" for seed in seeds),
                ", ".join("–" if seed["step"] is None else f"{seed['step']:,}" for seed in seeds),
                "–" if arm["ratio"] is None else f"{arm['ratio']:.2f}",
            ]
        )
    return rows


def notes(found: Mapping[str, Any]) -> list[str]:
    """The flags, a line each."""
    return [f"[{flag['name']}] {flag['text']}" for flag in found["flags"]]


def ramp_picture(
    arms: Mapping[str, Sequence[RampCurve]], logarithmic: bool, title: str, path: Path
) -> Path:
    """Draw a line a run and a cross where it diverged, write a PNG, return its path.

    `logarithmic`: the axis of rates, for those that climb by a ratio.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    losses = [loss for curves in arms.values() for curve in curves for loss in curve.losses]
    low = min(losses, default=0.0)
    axes.set_ylim(low - 0.2, low + ABOVE)
    for index, (name, curves) in enumerate(arms.items()):
        draw_arm(axes, name, curves, COLOURS[index % len(COLOURS)])
    if losses:
        axes.legend(frameon=False)
    axes.set_xscale("log" if logarithmic else "linear")
    plain_ticks(axes)
    axes.set_xlabel("learning rate, rising at each step; × where the loss diverged")
    axes.set_ylabel("training loss, smoothed (nats per token)")
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path


def draw_arm(axes: "Axes", name: str, curves: Sequence[RampCurve], colour: str) -> None:
    """The runs of an arm in its colour, named once; a cross above the picture is at its top."""
    top = axes.get_ylim()[1]
    for place, curve in enumerate(curves):
        label = name if place == 0 else None
        axes.plot(curve.rates, curve.losses, color=colour, linewidth=1.0, alpha=0.8, label=label)
        if curve.diverged is not None:
            pairs = zip(curve.rates, curve.losses, strict=True)
            height = next((loss for rate, loss in pairs if rate >= curve.diverged), top)
            height = min(height, top)
            axes.plot(curve.diverged, height, "x", color=colour, markersize=8, clip_on=False)
