"""A probe's picture: a panel a series, over layers, over steps, or as distributions.

Time and depth are colours of viridis, which colour-blind readers and grey print keep in order: the
later or the deeper, the darker.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.inspection.probes import PROBES
from unitsphere.inspection.updates import relative_variance
from unitsphere.report.probe_panels import FIRST, LAST, History, colours, draw_panel, spread
from unitsphere.report.render.ticks import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLUMNS = 4
PANEL = (2.6, 2.1)
OVER_ONE = ("gradient_ratio", "mean_gradient_ratio", "mean_gradients_by_layer")
"""Probes of ratios: a line at 1 says where nothing differs."""
BESIDE: Any = "outside center right"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "unitsphere",
}


def draw(name: str, probe: Mapping[str, Any], run: str, *paths: Path) -> None:
    """Draw a probe that applies, from its entry in the document; SVG or PNG by the paths."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = picture(name, probe, run)
        layout = figure.get_layout_engine()
        assert layout is not None
        layout.execute(figure)
        figure.set_layout_engine(None)  # it is laid out: not once more for each file
        for path in paths:
            same_bytes = {"Date": None} if path.suffix == ".svg" else None
            with aside(path) as drawn:
                figure.savefig(drawn, dpi=150, metadata=same_bytes)


def history_of(name: str, values: Mapping[str, Any]) -> History:
    """What is drawn: the checkpoints, or the live records where these have more steps to show."""
    over_steps, live = values["axis"] == "step", values["live"]
    source = values
    if not values["steps"] or (over_steps and len(live["steps"]) > len(values["steps"])):
        source = live
    steps, scenes = source["steps"], source["series"]
    relative = PROBES[name].relative and len(steps) > 1
    if relative:
        scenes = relative_variance(scenes)
    return History(
        steps, scenes, values["form"], over_steps and len(steps) > 1, values["log"] and not relative
    )


def picture(name: str, probe: Mapping[str, Any], run: str) -> "Figure":
    """The figure: its panels, what colours mean beside them, a title with the figure's source."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    history = history_of(name, probe["values"])
    panels = history.panels()
    columns = min(COLUMNS, len(panels))
    count = -(-len(panels) // columns)
    wide = 4.2 if len(panels) == 1 else PANEL[0] * columns
    size = (wide + 1.4, PANEL[1] * count + 0.7 + 0.6 * (count == 1))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    apart = history.form == "distribution" and any(map(history.single, panels))
    alike = name != "learned_scales" and not apart
    grid = figure.subplots(count, columns, squeeze=False, sharey=alike).flatten()
    for axes, (title, names) in zip(grid, panels.items(), strict=False):
        draw_panel(axes, names, history)
        axes.set_title(title)
        if name in OVER_ONE:
            axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    for axes in grid[: len(panels)]:
        plain_ticks(axes)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    label(figure, name, history, probe["values"]["unit"], list(grid[: len(panels)]), columns)
    figure.legend(handles=legend(history, panels), loc=BESIDE)
    title = textwrap.fill(f"{probe['title']}: {run}", round(13 * size[0]))
    figure.suptitle(f"{title}\n{probe['source']}", fontsize=10)
    return figure


def label(
    figure: "Figure", name: str, history: History, unit: str, grid: list["Axes"], columns: int
) -> None:
    """What the axes are: once for all panels where they agree."""
    if PROBES[name].relative and history.over_steps:
        unit += ",\nover its sum over the steps"
    under = "depth (layer / layers)" if name == "lambda_by_depth" else "layer"
    if history.over_steps:
        under = "step"
    for place, (axes, title) in enumerate(zip(grid, history.panels(), strict=True)):
        if history.form == "distribution" and history.single(title):
            axes.set_xlabel(unit)
            axes.set_ylabel("frequency")
        elif place >= len(grid) - columns:
            axes.set_xlabel(under)
    if not all(axes.get_ylabel() for axes in grid):
        figure.supylabel(unit, fontsize=9)


def legend(history: History, panels: Mapping[str, list[str]]) -> list["Line2D"]:
    """What colours and dots mean."""
    from matplotlib.lines import Line2D

    entries: list[tuple[str, Any, Any]] = []
    places = history.lines()
    if history.over_steps:
        labels = [label for label in history.labels() if label]
        chosen = spread(len(labels))
        names = [f"layer {labels[place]}" for place in chosen]
        entries += zip(names, colours(len(chosen)), "-" * len(chosen), strict=True)
    elif history.boxed:
        if len(places) > 1:
            entries.append((f"step {history.steps[0]:,}", FIRST, "-"))
        entries.append((f"step {history.steps[-1]:,}", LAST, "-"))
    else:
        names = [f"step {history.steps[place]:,}" for place in places]
        entries += zip(names, colours(len(places)), "-" * len(places), strict=True)
    if dotted := {n.removeprefix(base) for base, names in panels.items() for n in names[1:]}:
        meaning = {" unit": "unit vectors", " if uniform": "all keys alike"}
        entries += [(meaning[end], "black", ":") for end in sorted(dotted)]
    return [Line2D([], [], color=c, ls=style, label=name) for name, c, style in entries]
