"""The training bench as a picture: every round's step time, and the ratios over the noise."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.errors import UserError
from unitsphere.files import aside
from unitsphere.report.curves import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def check_figure(path: Path) -> None:
    """Raise UserError unless the picture can be written in the form that its name asks for."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--figure {path} must end in .png, .svg or .pdf")


def draw_training(report: Mapping[str, Any], path: Path) -> Path:
    """Write the picture of a report of `bench_training`; its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_figure(path)
    arms = report["arms"]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(arms)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (name, arm) in enumerate(arms.items()):
        colour = COLOURS[row % len(COLOURS)]
        rounds = arm["rounds_ms"]
        left.plot(rounds, [row] * len(rounds), ".", color=colour, alpha=0.5)
        left.plot([arm["ms"]], [row], "|", color=colour, markersize=18)
        _ratio(right, row, report["ratios"].get(f"{name}/{report['noise']['arm']}"), colour)
    floor = report["noise"]["floor"]
    right.axvspan(1 - floor, 1 + floor, color="0.88", zorder=0, label="noise")
    left.set_yticks(range(len(arms)), list(arms))
    left.set_ylim(len(arms) - 0.5, -0.5)
    left.set_xlabel("ms a step: each round, and the median")
    right.set_xlabel(f"÷ {report['noise']['arm']}, with the 95% interval; grey: noise")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path


def _ratio(axes: "Axes", row: int, ratio: Mapping[str, Any] | None, colour: str) -> None:
    """The baseline has no interval: it is 1."""
    low, median, high = (ratio[k] for k in ("low", "median", "high")) if ratio else (1, 1, 1)
    axes.plot([low, high], [row, row], color=colour)
    axes.plot([median], [row], "o", color=colour)
