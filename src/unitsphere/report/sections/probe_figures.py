"""An inspected probe as a figure: over layers, over steps, or its distribution.

A probe over layers shows the last checkpoint and the first; one over steps a line for
each layer, or their mean with their range.
"""

import dataclasses
import itertools
import shlex
import statistics
from collections.abc import Mapping, Sequence

from unitsphere.report.document import MOST_LINES, Figure, Number, Series, Style
from unitsphere.report.numbers import round_off
from unitsphere.report.runs import Json, Run
from unitsphere.report.sections.probe_view import FIRST, LAST, means, quantile, view_of

FEW = 3
"""Series of one plot; more have a panel each."""
MOST_STEP_LINES = 8
"""Lines of a plot over steps; of more a series' layers become their mean."""


def layer_figure(run: Run, name: str, probe: Json, command: str) -> Figure | None:
    """A probe over layers at the last checkpoint, and at the first; None for one over steps.

    None too for what has a single place.
    """
    view = view_of(probe["values"])
    labels = view.labels()
    if view.over_steps or not view.scenes or len(labels) == 1:
        return None
    last = view.scenes[LAST]
    lines = [
        layer_line(key, series, labels, colour, banded=True)
        for colour, (key, series) in enumerate(last.items())
    ]
    steps = view.steps
    began, ended = (f"step {steps[place]:,}" for place in (FIRST, LAST))
    if len(steps) > 1:
        lines += [
            layer_line(f"{key}, {began}", series, labels, colour, style="dashed")
            for colour, (key, series) in enumerate(view.scenes[FIRST].items())
        ]
    if len(last) > FEW:
        lines = [in_panel(line, began, ended) for line in lines]
    caption = f"S{ended[1:]}; dashed: {began}." if len(steps) > 1 else f"S{ended[1:]}."
    return Figure(
        name=f"{run.name}-{name}",
        title=probe["title"],
        y=probe["values"]["unit"],
        xs={"layer": "layer"},
        series=lines,
        caption=f"{probe['source']}. {caption}",
        log_y=view.log,
        data=command,
        ticks={float(place): label or "all" for place, label in enumerate(labels)},
        printed=False,
    )


def layer_line(
    name: str,
    series: Json,
    labels: Sequence[str],
    colour: int,
    style: Style = "both",
    banded: bool = False,
) -> Series:
    """A series over the places of its layers; `banded` from its 5% to its 95% quantile."""
    low, high = quantile_ends(series) if banded else (None, None)
    places = {"layer": [float(labels.index(label)) for label in series["labels"]]}
    return Series(name, places, means(series), colour, style, low=low, high=high)


def in_panel(line: Series, began: str, ended: str) -> Series:
    """A series' line in its own panel, where the legend names the steps."""
    first = line.style == "dashed"
    return dataclasses.replace(
        line,
        panel=line.name.removesuffix(f", {began}") if first else line.name,
        group=began if first else ended,
        colour=0,
    )


def overlay_figures(name: str, arms: Mapping[str, tuple[Run, Json]], spread: bool) -> list[Figure]:
    """A probe of several arms at their last step: a panel per series, a line per arm.

    spread: the series' distributions over all layers (nGPT Figure 15) in place of their means by
    layer. Of more than MOST_LINES arms a figure per series, a panel per arm. None for a series
    that a single arm has.
    """
    panels: dict[str, list[Series]] = {}
    labels: list[str] = []
    for colour, (arm, (_, probe)) in enumerate(arms.items()):
        scenes = probe["values"]["series"]
        for key, series in (scenes[LAST] if scenes else {}).items():
            if spread:
                found = density_line(arm, key, series, colour)
            else:
                labels += [label for label in series["labels"] if label not in labels]
                single = len(series["labels"]) < 2
                found = None if single else layer_line(arm, series, labels, colour, banded=True)
            if found is not None:
                panels.setdefault(key, []).append(found)
    shared = {key: lines for key, lines in panels.items() if len(lines) > 1}
    if not shared:
        return []
    many = len(arms) > MOST_LINES
    groups = [{key: lines} for key, lines in shared.items()] if many else [shared]
    return [overlay_figure(name, arms, group, labels, spread) for group in groups]


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
        y="density" if spread else values["unit"],
        xs={"value": values["unit"]} if spread else {"layer": "layer"},
        series=[
            dataclasses.replace(line, panel=key if several else "")
            for key, lines in panels.items()
            for line in lines
        ],
        caption=f"{probe['source']}. {what}, at steps: {steps}.",
        log_x=spread and bool(values["log"]),
        log_y=not spread and bool(values["log"]),
        data=shlex.join(["unitsphere", "inspect", str(next(iter(arms.values()))[0].folder)]),
        ticks={} if spread else {float(i): label or "all" for i, label in enumerate(labels)},
        printed=False,
    )


def density_line(arm: str, key: str, series: Json, colour: int) -> Series | None:
    """An arm's histogram as shares per width of a bin, so that bins of any width compare.

    Bins without a width, of values that differ by less than the file's digits show, are left out.
    """
    edges, counts = series.get("edges", []), series.get("counts", [])
    if len(edges) < 2:
        return None
    total = sum(counts) or 1
    pairs = [p for p in zip(itertools.pairwise(edges), counts, strict=True) if p[0][0] < p[0][1]]
    middles = [round_off((a + b) / 2) or 0.0 for (a, b), _ in pairs]
    heights = [round_off(count / total / (b - a)) for (a, b), count in pairs]
    return Series(arm, {"value": middles}, heights, colour, "line")


def has_edges(series: Mapping[str, Json]) -> bool:
    """Whether there are histograms."""
    return any(len(each.get("edges", [])) > 1 for each in series.values())


def quantile_ends(series: Json) -> tuple[list[Number] | None, list[Number] | None]:
    """The 5% and 95% quantiles of a distribution at each label."""
    if not series.get("quantiles"):
        return None, None
    return quantile(series, 0.05), quantile(series, 0.95)


def histogram_figure(run: Run, name: str, probe: Json, command: str) -> Figure | None:
    """The distribution of a probe with one place, at the last checkpoint and the first, or None."""
    view = view_of(probe["values"])
    if view.over_steps or not view.scenes:
        return None
    last = view.scenes[LAST]
    if any(len(series["labels"]) > 1 for series in last.values()) or not has_edges(last):
        return None
    lines = []
    for place in (LAST, FIRST)[: len(view.scenes)]:
        step = view.steps[place]
        for colour, (key, series) in enumerate(view.scenes[place].items()):
            edges, counts = series.get("edges", []), series.get("counts", [])
            total = sum(counts) or 1
            middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
            lines.append(
                Series(
                    f"{key}, step {step:,}",
                    {"value": [round_off(x) or 0.0 for x in middles]},
                    [round_off(count / total) for count in counts],
                    colour,
                    style="line" if place == LAST else "dashed",
                )
            )
    return Figure(
        name=f"{run.name}-{name}",
        title=probe["title"],
        y="share",
        xs={"value": probe["values"]["unit"]},
        series=lines,
        caption=f"{probe['source']}. Its distribution; dashed: at the first checkpoint.",
        log_x=view.log,
        data=command,
        printed=False,
    )


def step_figure(run: Run, name: str, probe: Json, command: str) -> Figure | None:
    """A probe over the checkpoints' steps; None for one over layers, or of a single step."""
    view = view_of(probe["values"])
    if not view.over_steps or len(view.steps) < 2:
        return None
    by_line = view.lines()
    axis = {"step": [float(step) for step in view.steps]}
    return Figure(
        name=f"{run.name}-{name}",
        title=probe["title"],
        y=probe["values"]["unit"],
        xs={"step": "optimizer steps"},
        series=step_lines(by_line, axis),
        caption=f"{probe['source']}. At the checkpoints{RANGE if too_many(by_line) else ''}.",
        log_y=view.log,
        data=command,
        printed=False,
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
