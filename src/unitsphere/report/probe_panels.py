"""The panels of a probe's picture: lines over layers, lines over steps, boxes, histograms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unitsphere.inspection.values import QUANTILES, Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = 8
"""Steps or layers that are lines of their own; of more, so many evenly spread."""
FIRST, LAST = "#8c8c8c", "#0072B2"
"""The boxes of the first and the last step (Okabe and Ito's blue)."""
DOTTED = (" unit", " if uniform")
"""Ends of the names of series that are drawn in the panel of another, dotted."""


@dataclass(frozen=True)
class History:
    """What is drawn: the series of each step, over steps or over layers; log: that axis is."""

    steps: Sequence[int]
    scenes: Sequence[Values]
    form: str
    over_steps: bool
    log: bool

    def panels(self) -> dict[str, list[str]]:
        """Panel -> its series: one, and what is dotted beside it."""
        found: dict[str, list[str]] = {}
        for name in self.scenes[-1]:
            base = next((name.removesuffix(end) for end in DOTTED if name.endswith(end)), name)
            found.setdefault(base, []).append(name)
        return found

    def single(self, name: str) -> bool:
        """Whether a series belongs to the whole model, not to layers."""
        return self.scenes[-1][name]["labels"] == [""]

    @property
    def boxed(self) -> bool:
        """Whether any panel shows boxes; then the others show the first and last step alone too."""
        return self.form == "distribution" and not all(map(self.single, self.panels()))

    def lines(self) -> list[int]:
        """Places in `scenes` of the steps that are lines of their own."""
        return spread(len(self.scenes))

    def labels(self) -> list[str]:
        """The layers of the series that has most."""
        return max((s["labels"] for s in self.scenes[-1].values()), key=len)


def spread(count: int) -> list[int]:
    """At most LINES of the numbers below `count`, evenly spread, the first and the last always."""
    if count <= LINES:
        return list(range(count))
    return sorted({round(i * (count - 1) / (LINES - 1)) for i in range(LINES)})


def colours(count: int) -> list[Any]:
    """As many colours of viridis, from light to dark, without its yellow end."""
    import matplotlib as mpl

    viridis = mpl.colormaps["viridis"]
    return [viridis(0.85 * (1 - i / max(count - 1, 1))) for i in range(count)]


def draw_panel(axes: "Axes", names: Sequence[str], history: History) -> None:
    """Draw the series of one panel."""
    if history.form == "distribution":
        kind = draw_histograms if history.single(names[0]) else draw_boxes
    else:
        kind = draw_over_steps if history.over_steps else draw_over_layers
    for name in names:
        kind(axes, name, history, "-" if name == names[0] else ":")
    if kind is draw_histograms:
        axes.set_ylim(bottom=0)
        axes.set_yticks([])
    if history.log:
        axes.set(**{f"{'x' if kind is draw_histograms else 'y'}scale": "log"})


def draw_over_layers(axes: "Axes", name: str, history: History, style: str) -> None:
    """A line a step, over layers."""
    places = history.lines()
    for place, colour in zip(places, colours(len(places)), strict=True):
        series = history.scenes[place].get(name)
        if series is not None:
            marker = "o" if style == "-" else "."
            xs = range(len(series["values"]))
            axes.plot(
                xs, heights(series["values"]), style, marker=marker, markersize=3, color=colour
            )
    layer_ticks(axes, history.scenes[-1][name]["labels"])


def draw_over_steps(axes: "Axes", name: str, history: History, style: str) -> None:
    """A line a layer, over steps."""
    labels = history.scenes[-1][name]["labels"]
    chosen = spread(len(labels))
    for place, colour in zip(chosen, colours(len(chosen)), strict=True):
        points = [
            (step, value_at(values.get(name), labels[place]))
            for step, values in zip(history.steps, history.scenes, strict=True)
        ]
        known = [(step, value) for step, value in points if value is not None]
        marker = "o" if len(known) < 20 else ""
        axes.plot(*zip(*known, strict=True), style, marker=marker, markersize=3, color=colour)


def value_at(series: Mapping[str, Any] | None, label: str) -> float | None:
    """A series' value at a label, if it has one."""
    if series is None or label not in series["labels"]:
        return None
    return series["values"][series["labels"].index(label)]


def draw_boxes(axes: "Axes", name: str, history: History, style: str) -> None:
    """5–95% as a line, 25–75% as a bar, the median as a dot, a layer: of the last and first step.

    What is dotted: a line of medians, of the last step.
    """
    series = history.scenes[-1][name]
    middle = QUANTILES.index(0.5)
    if style == ":":
        medians = heights([quantiles[middle] for quantiles in series["quantiles"]])
        axes.plot(range(len(medians)), medians, style, color="black")
        return
    several = len(history.scenes) > 1
    if several and name in history.scenes[0]:
        boxes(axes, history.scenes[0][name], -0.15, FIRST)
    boxes(axes, series, 0.15 if several else 0.0, LAST)
    layer_ticks(axes, series["labels"])


def boxes(axes: "Axes", series: Mapping[str, Any], shift: float, colour: str) -> None:
    """The boxes of one step, beside their layers' places."""
    for place, quantiles in enumerate(series["quantiles"]):
        _, low, lower, middle, upper, high, _ = quantiles
        if middle is None:
            continue
        x = place + shift
        axes.plot([x, x], [low, high], color=colour, linewidth=1)
        axes.plot([x, x], [lower, upper], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(x, middle, "o", color="white", markeredgecolor=colour, markersize=3.5)


def draw_histograms(axes: "Axes", name: str, history: History, style: str) -> None:
    """The outline of a histogram a step, each up to the same height: steps have other bins."""
    places = history.lines()
    shades = colours(len(places))
    if history.boxed:
        places = sorted({places[0], places[-1]})
        shades = [FIRST, LAST][-len(places) :]
    for place, colour in zip(places, shades, strict=True):
        series = history.scenes[place].get(name)
        if series is not None and series["counts"]:
            most = max(series["counts"])
            shares = [count / most for count in series["counts"]]
            axes.stairs(shares, series["edges"], color=colour, linestyle=style, linewidth=1.3)


def heights(values: Sequence[float | None]) -> list[float]:
    """Values for a line; a gap where one is not known."""
    return [float("nan") if value is None else value for value in values]


def layer_ticks(axes: "Axes", labels: Sequence[str]) -> None:
    """Layers' labels under the axis, as many as there is room for."""
    every = -(-len(labels) // 8)
    places = list(range(0, len(labels), every))
    axes.set_xticks(places, [labels[place] or "all" for place in places])
    axes.set_xlim(-0.5, len(labels) - 0.5)
