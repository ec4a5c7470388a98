"""An inspected probe, and what the page draws of it: over layers, over steps, its distribution.

A probe over layers shows the last checkpoint and the first; one over steps a line for
each layer, or their mean with their range.
"""

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from unitsphere.inspection.values import QUANTILES
from unitsphere.report.document import MOST_LINES, Figure, Number, Series, Style
from unitsphere.report.numbers import round_off
from unitsphere.report.runs import Json, Run

Scene = Mapping[str, Json]
"""Series by name, at one step."""
FIRST, LAST = 0, -1


@dataclass(frozen=True)
class ProbeView:
    """An inspected probe: the series of each step, to be drawn over steps or over layers.

    log: whether the axis of its values is logarithmic.
    """

    steps: Sequence[int]
    scenes: Sequence[Scene]
    form: str
    over_steps: bool
    log: bool

    def labels(self) -> list[str]:
        """The labels of all series at all steps."""
        return labels_of(series for scene in self.scenes for series in scene.values())

    def lines(self) -> dict[tuple[str, str], list[Number]]:
        """(series, label) -> its value at each step, None where it has none."""
        found: dict[tuple[str, str], list[Number]] = {}
        for place, scene in enumerate(self.scenes):
            for name, series in scene.items():
                for label, value in zip(series["labels"], means(series), strict=True):
                    line = found.setdefault((name, label), [None] * len(self.steps))
                    line[place] = value
        return found


def labels_of(several: Iterable[Json]) -> list[str]:
    """The labels of some series in the order in which h passes, an encoder's first."""

    def place(label: str) -> tuple[bool, float]:
        stack, _, number = label.rpartition(" ")
        return not stack, float(number) if number[:1].isdigit() else -1.0

    return sorted({label for series in several for label in series["labels"]}, key=place)


def view_of(values: Json) -> ProbeView:
    """What a probe's entry says of the checkpoints."""
    over_steps = values["axis"] == "step"
    return ProbeView(
        values["steps"], values["series"], values["form"], over_steps, bool(values["log"])
    )


def means(series: Json) -> list[Number]:
    """A value per label: of a distribution its mean."""
    return list(series["values"] if "values" in series else series.get("means", []))


def medians(series: Json) -> list[Number]:
    """A value per label: of a distribution its median."""
    return list(series["values"]) if "values" in series else quantile(series, 0.5)


def quantile(series: Json, share: float) -> list[Number]:
    """A quantile of a distribution at each label."""
    return [quantiles[QUANTILES.index(share)] for quantiles in series["quantiles"]]


def layer_ticks(labels: Sequence[str]) -> dict[float, str]:
    """Place -> the label of the layer that is there."""
    return {float(place): label or "all" for place, label in enumerate(labels)}


FEW = 3
"""Series of one plot; more have a panel each."""
MOST_STEP_LINES = 8
"""Lines of a plot over steps; of more a series' layers become their mean."""


def probe_figure(run: Run, name: str, probe: Json) -> Figure | None:
    """A probe at a run's checkpoints; None for a single number, or one over a single step."""
    view = view_of(probe["values"])
    plain = Figure(
        name=f"{run.name}-{name}",
        title=probe["title"],
        y=probe["values"]["unit"],
        xs={},
        series=[],
        caption=f"{probe['source']}.",
        log_y=view.log,
        data=shlex.join(["unitsphere", "inspect", str(run.folder)]),
        printed=False,
    )
    if view.over_steps:
        return step_figure(plain, view)
    return layer_figure(plain, view) if len(view.labels()) > 1 else histogram_figure(plain, view)


def compared(view: ProbeView) -> list[tuple[int, Style, str]]:
    """Place, style and name of the last checkpoint, and of the first if that is another."""
    styles: tuple[tuple[int, Style], ...] = ((LAST, "both"), (FIRST, "dashed"))
    return [(at, style, f"step {view.steps[at]:,}") for at, style in styles[: len(view.steps)]]


def layer_figure(plain: Figure, view: ProbeView) -> Figure:
    """A probe over layers at the last checkpoint and the first; of many series a panel each."""
    labels, found = view.labels(), compared(view)
    lines = []
    for place, style, step in found:
        for colour, (key, series) in enumerate(view.scenes[place].items()):
            shown = f"{key}, {step}" if style == "dashed" else key
            line = layer_line(shown, series, labels, colour, style)
            if len(view.scenes[LAST]) > FEW:  # the panel names the series, the legend the steps
                line = replace(line, panel=key, group=step, colour=0)
            lines.append(line)
    dashed = "".join(f"; dashed: {step}" for _, style, step in found if style == "dashed")
    return replace(
        plain,
        xs={"layer": "layer"},
        series=lines,
        caption=f"{plain.caption} S{found[0][2][1:]}{dashed}.",
        ticks=layer_ticks(labels),
    )


def layer_line(
    name: str, series: Json, labels: Sequence[str], colour: int, style: Style = "both"
) -> Series:
    """A series over the places of its layers; of a distribution with its 5% to 95%, if solid."""
    banded = series.get("quantiles") and style != "dashed"
    low, high = (quantile(series, share) if banded else None for share in (0.05, 0.95))
    places = {"layer": [float(labels.index(label)) for label in series["labels"]]}
    return Series(name, places, means(series), colour, style, low=low, high=high)


def overlay_figures(
    name: str,
    arms: Mapping[str, tuple[Run, Json]],
    colours: Mapping[str, int],
    spread: bool,
) -> list[Figure]:
    """A probe of several arms at their last step: a panel per series, a line per arm.

    colours: of every arm of the page, also of those without the probe.
    spread: the series' distributions over all layers (nGPT Figure 15) in place of their means by
    layer. Of more than MOST_LINES arms a figure per series, a panel per arm. None for a series
    that a single arm has.
    """
    panels: dict[str, list[Series]] = {}
    last = {arm: (p["values"]["series"] or [{}])[LAST] for arm, (_, p) in arms.items()}
    labels = labels_of(s for scene in last.values() for s in scene.values() if has_layers(s))
    log = any(probe["values"]["log"] for _, probe in arms.values())
    for arm, scene in last.items():
        for key, series in scene.items():
            if spread:
                found = density_line(arm, series, colours[arm], log)
            elif has_layers(series):
                found = layer_line(arm, series, labels, colours[arm])
            else:
                found = None
            if found is not None:
                panels.setdefault(key, []).append(found)
    shared = {key: lines for key, lines in panels.items() if len(lines) > 1}
    if not shared:
        return []
    many = len(arms) > MOST_LINES
    groups = [{key: lines} for key, lines in shared.items()] if many else [shared]
    return [overlay_figure(name, arms, group, labels, spread) for group in groups]


def has_layers(series: Json) -> bool:
    """Whether a series has more than one place."""
    return len(series["labels"]) > 1


def overlay_figure(
    name: str,
    arms: Mapping[str, tuple[Run, Json]],
    panels: Mapping[str, Sequence[Series]],
    labels: Sequence[str],
    spread: bool,
) -> Figure:
    """The panels as one figure; a single panel has no name."""
    probe = next(iter(arms.values()))[1]
    values, first = probe["values"], next(iter(panels))
    several = len(panels) > 1
    drawn = {line.name for lines in panels.values() for line in lines}
    ends = {arm: probe["values"]["steps"][LAST] for arm, (_, probe) in arms.items() if arm in drawn}
    steps = ", ".join(f"{arm} {step:,}" for arm, step in ends.items())
    what = "Distribution over all layers" if spread else "By layer"
    return Figure(
        name=f"overlay-{name}{'-spread' if spread else ''}{'' if several else f'-{first}'}",
        title=probe["title"] if several else f"{probe['title']}: {first}",
        y=density(bool(values["log"])) if spread else values["unit"],
        xs={"value": values["unit"]} if spread else {"layer": "layer"},
        series=[
            replace(line, panel=key if several else "")
            for key, lines in panels.items()
            for line in lines
        ],
        caption=f"{probe['source']}. {what}, at steps: {steps}.",
        log_x=spread and bool(values["log"]),
        log_y=not spread and bool(values["log"]),
        data=shlex.join(["unitsphere", "inspect", str(next(iter(arms.values()))[0].folder)]),
        ticks={} if spread else layer_ticks(labels),
        printed=False,
    )


def density_line(name: str, series: Json, colour: int, log: bool) -> Series | None:
    """A histogram as shares per width of a bin, so that bins of any width compare.

    log: the width is in decades. Bins without a width, of values that differ by less than the
    file's digits show, are left out.
    """
    edges, counts = series.get("edges", []), series.get("counts", [])
    if len(edges) < 2:
        return None
    total = sum(counts) or 1
    pairs = [p for p in zip(pairwise(edges), counts, strict=True) if p[0][0] < p[0][1]]
    middles = [round_off((a + b) / 2) or 0.0 for (a, b), _ in pairs]
    widths = [math.log10(b / a) if log else b - a for (a, b), _ in pairs]
    heights = [round_off(n / total / width) for (_, n), width in zip(pairs, widths, strict=True)]
    return Series(name, {"value": middles}, heights, colour)


def density(log: bool) -> str:
    """The label of a density's axis."""
    return "density, per decade" if log else "density"


def histogram_figure(plain: Figure, view: ProbeView) -> Figure | None:
    """The distribution of what has one place, at the last checkpoint and the first, or None."""
    lines = [
        replace(line, style="dashed" if place == FIRST else "line")
        for place, _, step in compared(view)
        for colour, (key, series) in enumerate(view.scenes[place].items())
        if (line := density_line(f"{key}, {step}", series, colour, view.log)) is not None
    ]
    if not lines:
        return None
    return replace(
        plain,
        y=density(view.log),
        xs={"value": plain.y},
        series=lines,
        caption=f"{plain.caption} Its distribution; dashed: at the first checkpoint.",
        log_x=view.log,
        log_y=False,
    )


def step_figure(plain: Figure, view: ProbeView) -> Figure | None:
    """A probe over the checkpoints' steps; None of a single step."""
    if len(view.steps) < 2:
        return None
    lines = view.lines()
    return replace(
        plain,
        xs={"step": "optimizer steps"},
        series=step_lines(lines, {"step": [float(step) for step in view.steps]}),
        caption=f"{plain.caption} At the checkpoints{RANGE if too_many(lines) else ''}.",
    )


RANGE = "; mean over the layers, the band from the lowest to the highest"


def too_many(by_line: Mapping[tuple[str, str], Sequence[Number]]) -> bool:
    """Whether a line for each layer of each series would be too many."""
    return len(by_line) > MOST_STEP_LINES


def step_lines(
    by_line: Mapping[tuple[str, str], Sequence[Number]], axis: Mapping[str, Sequence[float]]
) -> list[Series]:
    """A line for each series and layer; where those are too many the layers' mean and range."""
    if not too_many(by_line):
        return [
            Series(f"{key} {label}".strip(), axis, list(y), colour, style="both")
            for colour, ((key, label), y) in enumerate(by_line.items())
        ]
    by_key: dict[str, list[Sequence[Number]]] = {}
    for (key, _), y in by_line.items():
        by_key.setdefault(key, []).append(y)
    lines = []
    for colour, (key, ys) in enumerate(by_key.items()):
        known = [[v for v in at if v is not None] for at in zip(*ys, strict=True)]
        middle, low, high = (
            [round_off(of(values)) if values else None for values in known]
            for of in (statistics.fmean, min, max)
        )
        lines.append(Series(key, axis, middle, colour, style="both", low=low, high=high))
    return lines
