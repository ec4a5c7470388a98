"""Loss against training tokens as a picture: a point a run, a line through each arm's means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS, MARKERS, apart, line_style
from unitsphere.report.numbers import compact
from unitsphere.report.render.axes import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME_ROOM = 1.35
"""The axis' right end divided by the largest budget."""
NAME_SPACING = 0.06
"""Names closer than this part of the axis' height would overlap."""


@dataclass(frozen=True)
class BudgetCurve:
    """One arm: budgets in tokens, rising, and the losses of the seeds at each, at least one."""

    name: str
    tokens: Sequence[int]
    losses: Sequence[Sequence[float]]

    @property
    def means(self) -> list[float]:
        """The mean at each budget."""
        return [sum(each) / len(each) for each in self.losses]


def curves_of(arms: Mapping[str, Mapping[str, object]]) -> list[BudgetCurve]:
    """The curves of a comparison's arms (`studies.compare`), of what finished."""
    found = []
    for name, arm in arms.items():
        budgets = arm["budgets"]
        assert isinstance(budgets, list)
        points = [
            (budget["tokens"], [s["loss"] for s in budget["seeds"] if s["loss"] is not None])
            for budget in budgets
        ]
        kept = [(tokens, losses) for tokens, losses in points if losses]
        if kept:
            found.append(BudgetCurve(name, [t for t, _ in kept], [each for _, each in kept]))
    return found


def budget_curves(curves: Sequence[BudgetCurve], title: str, path: Path) -> Path:
    """Draw the curves on a log axis of tokens, the seeds' spread as a band; returns the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_xscale("log")
    for index, curve in enumerate(curves):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        draw(axes, curve, colour, marker, line_style(index))
    every = sorted({tokens for curve in curves for tokens in curve.tokens})
    if every:
        axes.set_xlim(every[0] / 1.1, every[-1] * NAME_ROOM)
        axes.set_xticks(every, [compact(each, 3) for each in every])
        axes.set_xticks([], minor=True)
    axes.set_xlabel("training tokens, each point a run annealed over them")
    axes.set_ylabel("validation loss (nats per token)")
    plain_ticks(axes)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    name_lines(axes, curves)
    axes.set_title(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path


def draw(axes: "Axes", curve: BudgetCurve, colour: str, marker: str, line: str) -> None:
    """One arm: band from lowest to highest seed, a point a seed, a line through the means."""
    lows, highs = ([end(each) for each in curve.losses] for end in (min, max))
    axes.fill_between(curve.tokens, lows, highs, color=colour, alpha=0.15, linewidth=0)
    for tokens, losses in zip(curve.tokens, curve.losses, strict=True):
        axes.plot([tokens] * len(losses), losses, ".", color=colour, alpha=0.5, markersize=4)
    form = f"{marker}{line}"
    axes.plot(curve.tokens, curve.means, form, color=colour, markersize=5, linewidth=1.6)


def name_lines(axes: "Axes", curves: Sequence[BudgetCurve]) -> None:
    """Write each arm's name at its line's end, moved apart where they collide."""
    low, high = axes.get_ylim()
    heights = apart([curve.means[-1] for curve in curves], NAME_SPACING * (high - low))
    for index, (curve, height) in enumerate(zip(curves, heights, strict=True)):
        axes.annotate(
            curve.name,
            xy=(curve.tokens[-1], curve.means[-1]),
            xytext=(curve.tokens[-1] * 1.04, height),
            color=COLOURS[index % len(COLOURS)],
            fontsize=9,
            va="center",
        )
