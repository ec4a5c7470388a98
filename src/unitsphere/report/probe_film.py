"""Some probes as a moving picture, a frame a checkpoint: film.gif."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.inspection.values import QUANTILES
from unitsphere.report.probe_panels import LAST, heights, layer_ticks
from unitsphere.report.probe_pictures import COLUMNS, PANEL, STYLE
from unitsphere.report.render.ticks import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {
    "input_norms": 1,
    "sublayer_angles": 2,
    "condition_numbers": 1,
    "attention_entropy": 1,
    "logit_lens": 1,
    "second_fc_gradients": 1,
    "eigen_learning_rates": 1,
}
"""Probes that the film shows, where they apply, and how many of the first series of each."""
PER_SECOND = 4
Panel = tuple[str, str, dict[int, dict[str, Any]], bool]
"""Title, unit, step -> series, whether the axis is logarithmic."""


def draw_film(document: Mapping[str, Any], run: str, path: Path) -> list[Path]:
    """Write the film as a GIF: over layers, the step in bold, those before it in grey.

    Nothing is written of a single checkpoint, or if no probe that it shows applies.
    """
    import matplotlib as mpl
    from matplotlib.animation import PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels, steps = panels_of(document), document["checkpoints"]
    path.unlink(missing_ok=True)
    if not panels or len(steps) < 2:
        return []
    columns = min(COLUMNS, len(panels))
    count = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure((PANEL[0] * columns, PANEL[1] * count + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(count, columns, squeeze=False).flatten()
        writer = PillowWriter(fps=PER_SECOND)
        with aside(path) as drawn, writer.saving(figure, str(drawn), dpi=80):
            for step in steps:
                for axes, panel in zip(grid, panels, strict=False):
                    draw_frame(axes, panel, step)
                for axes in grid[len(panels) :]:
                    axes.set_axis_off()
                figure.suptitle(f"{run}: step {step:,} of {steps[-1]:,}", fontsize=11)
                writer.grab_frame()
    return [path]


def panels_of(document: Mapping[str, Any]) -> list[Panel]:
    """The panels of the probes that the film shows."""
    found: list[Panel] = []
    for name, most in SHOWN.items():
        probe = document["probes"].get(name)
        if probe is None or not probe["values"]["steps"]:
            continue
        values = probe["values"]
        for series in list(values["series"][-1])[:most]:
            at = zip(values["steps"], values["series"], strict=True)
            scenes = {step: scene[series] for step, scene in at if series in scene}
            unit = values["unit"].partition(" (")[0]
            found.append((f"{name}: {series}", unit, scenes, values["log"]))
    return found


def draw_frame(axes: "Axes", panel: Panel, step: int) -> None:
    """One panel at a step."""
    title, unit, scenes, log = panel
    axes.clear()
    for before, series in scenes.items():
        if before < step:
            axes.plot(middles(series), color="#cccccc", linewidth=0.8)
    if step in scenes:
        axes.plot(middles(scenes[step]), "o-", color=LAST, markersize=3)
    known = [y for series in scenes.values() for y in middles(series) if y == y]
    if known and log and min(known) > 0:
        axes.set_ylim(min(known) / 1.1, max(known) * 1.1)
        axes.set_yscale("log")
    elif known:
        margin = 0.05 * (max(known) - min(known) or 1)
        axes.set_ylim(min(known) - margin, max(known) + margin)
    plain_ticks(axes)
    axes.set_title(title, fontsize=8)
    axes.set_ylabel(unit, fontsize=7)
    layer_ticks(axes, next(iter(scenes.values()))["labels"])


def middles(series: Mapping[str, Any]) -> Sequence[float]:
    """A value a label: of a distribution the median."""
    if "values" in series:
        return heights(series["values"])
    return heights([quantiles[QUANTILES.index(0.5)] for quantiles in series["quantiles"]])
