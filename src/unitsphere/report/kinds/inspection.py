"""What `unitsphere inspect` shows: a table, a picture of each probe, and some of them as a film.

In the pictures time and depth are shades from light to dark: the later or the deeper, the darker.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from unitsphere.inspection.probes import PROBES
from unitsphere.inspection.updates import relative_variance
from unitsphere.report.document import Figure, Figures, Number, Page, Section, Series, Table
from unitsphere.report.numbers import known
from unitsphere.report.runs import Json
from unitsphere.report.sections.probe_figures import (
    FIRST,
    LAST,
    ProbeView,
    layer_ticks,
    medians,
    quantile,
    view_of,
)

FOLDER = "inspect"
"""The folder of the pictures, in the run's folder."""
COLUMNS = ("probe", "of", "first", "last", "lowest layer", "highest layer")
SERIES_SHOWN = 2
"""Series of a probe that the table shows; the others are in the figure and the JSON."""
LINES = 8
"""The most steps or layers that are drawn as lines; of more, this many evenly spaced ones."""
DOTTED = {" unit": "unit vectors", " if uniform": "all keys alike"}
"""Ends of the names of series that are dotted in the panel of another, and what they mean."""
OVER_ONE = ("gradient_ratio", "mean_gradient_ratio", "mean_gradients_by_layer")
"""Probes of ratios: a line at 1 shows where nothing differs."""
FILMED = {
    "input_norms": 1,
    "sublayer_angles": 2,
    "condition_numbers": 1,
    "attention_entropy": 1,
    "logit_lens": 1,
    "second_fc_gradients": 1,
    "eigen_learning_rates": 1,
}
"""Probes that the film shows, where they apply, and how many of the first series of each."""


def inspection_page(document: Mapping[str, Any], run: str) -> Page:
    """What an inspection found: a table, and the plots of each probe that applies."""
    told = {name: probe for name, probe in document["probes"].items() if probe["applies"]}
    steps = document["checkpoints"]
    first, last = f"{steps[0]:,}", f"{steps[-1]:,}"
    figures = [
        Figures(
            probe_pictures(name, probe),
            files=[f"{FOLDER}/{name}.svg", f"{FOLDER}/{name}.png"],
            title=f"{probe['title']}: {run}\n{probe['source']}",
            columns=4,
        )
        for name, probe in told.items()
    ]
    return Page(
        title=run,
        kind="Inspection",
        answer=f"{len(told)} of {len(document['probes'])} probes show something of {run}, at "
        f"{len(steps)} checkpoints from step {first} to step {last}.",
        caveats=silent(document),
        sections=[
            Section("results", "Results", [Table("Probes", COLUMNS, rows(document)), *figures])
        ],
    )


def rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Cells of the table: a row for each of the first series of the probes that apply.

    "first" and "last" are means over layers at the first and last checkpoint that it has.
    """
    found = []
    for name, probe in document["probes"].items():
        scenes = probe["values"]["series"] or probe["values"]["live"]["series"]
        if not probe["applies"] or not scenes:
            continue
        for place, (series, last) in enumerate(list(scenes[-1].items())[:SERIES_SHOWN]):
            first = scenes[0].get(series, last)
            layers = [value for value in medians(last) if value is not None]
            ends = (min(layers), max(layers)) if len(layers) > 1 else (None, None)
            cells = [mean(medians(first)), mean(medians(last)), *ends]
            found.append(["" if place else name, series, *(known(cell, ".3g") for cell in cells)])
    return found


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def silent(document: Mapping[str, Any]) -> list[str]:
    """A line for each probe that does not apply."""
    return [
        f"{name} does not apply: {probe['why']}"
        for name, probe in document["probes"].items()
        if not probe["applies"]
    ]


def pictured(name: str, values: Json) -> ProbeView:
    """What to draw: the checkpoints, or the live records where these have more steps to show."""
    live, over_steps = values["live"], values["axis"] == "step"
    source = values
    if not values["steps"] or (over_steps and len(live["steps"]) > len(values["steps"])):
        source = {**values, **live}
    if PROBES[name].relative and len(source["steps"]) > 1:
        source = {**source, "series": relative_variance(source["series"]), "log": False}
    view = view_of(source)
    return replace(view, over_steps=over_steps and len(view.steps) > 1)


def probe_pictures(name: str, probe: Json) -> list[Figure]:
    """The plots of a probe that applies, one per series, from its entry in the document."""
    view, unit = pictured(name, probe["values"]), probe["values"]["unit"]
    if PROBES[name].relative and view.over_steps:
        unit += ", over its sum over the steps"
    under = "depth (layer / layers)" if name == "lambda_by_depth" else "layer"
    panels = panels_of(view)
    histograms = [title for title in panels if is_histogram(title, view)]
    figures = []
    for title, names in panels.items():
        histogram = title in histograms
        labels = view.scenes[LAST][title]["labels"]
        figures.append(
            Figure(
                name=f"{name}-{title}",
                title=title,
                y="frequency" if histogram else unit,
                xs={"x": unit if histogram else "step" if view.over_steps else under},
                series=[line for each in names for line in panel_lines(each, title, view)],
                caption=probe["source"],
                log_x=view.log and histogram,
                log_y=view.log and not histogram,
                ticks={} if histogram or view.over_steps else layer_ticks(labels),
                level=1.0 if name in OVER_ONE else None,
                same_axes=name != "learned_scales" and not histograms,
            )
        )
    return figures


def panels_of(view: ProbeView) -> dict[str, list[str]]:
    """Panel -> its series: one, and the dotted ones of its panel."""
    found: dict[str, list[str]] = {}
    for name in view.scenes[LAST]:
        base = next((name.removesuffix(end) for end in DOTTED if name.endswith(end)), name)
        found.setdefault(base, []).append(name)
    return found


def is_histogram(name: str, view: ProbeView) -> bool:
    """Whether a series is the distribution of the whole model, not of layers."""
    return view.form == "distribution" and view.scenes[LAST][name]["labels"] == [""]


def panel_lines(name: str, panel: str, view: ProbeView) -> list[Series]:
    """The lines of one series in a panel."""
    end = name.removeprefix(panel)
    if is_histogram(panel, view):
        return histogram_lines(name, view)
    if view.form == "distribution":
        return boxes(name, end, view)
    if view.over_steps:
        return over_steps(name, end, view)
    return [
        layer_line(step_name(view, place), series["values"], shade, end)
        for place, shade in shaded(len(view.scenes))
        if (series := view.scenes[place].get(name)) is not None
    ]


def shaded(count: int, most: int = LINES) -> list[tuple[int, float]]:
    """At most `most` of the numbers below `count`, evenly spaced with both ends, and their shades.

    A single one is light.
    """
    gaps = max(min(count, most) - 1, 1)
    return [(round(i * (count - 1) / gaps), i / gaps) for i in range(min(count, most))]


def step_name(view: ProbeView, place: int) -> str:
    """A step's name in the legend."""
    return f"step {view.steps[place]:,}"


def layer_line(name: str, values: Sequence[Number], shade: float, end: str) -> Series:
    """Values over layers; dotted with the meaning of its `end` as the name, if it has one."""
    x = {"x": [float(place) for place in range(len(values))]}
    style = "dotted" if end else "both"
    return Series(DOTTED.get(end, name), x, values, style=style, shade=shade)


def over_steps(name: str, end: str, view: ProbeView) -> list[Series]:
    """A line per layer, over steps."""
    labels, values = view.scenes[LAST][name]["labels"], view.lines()
    lines = []
    for place, shade in shaded(len(labels)):
        label = labels[place]
        steps = zip(view.steps, values[name, label], strict=True)
        known = {float(step): value for step, value in steps if value is not None}
        shown = DOTTED.get(end) or (f"layer {label}" if label else "all")
        style = "dotted" if end else "line"
        lines.append(Series(shown, {"x": [*known]}, [*known.values()], style=style, shade=shade))
    return lines


def boxes(name: str, end: str, view: ProbeView) -> list[Series]:
    """For each layer 5–95% as a line, 25–75% as a bar, the median as a dot: first and last step.

    A dotted series: a line of its medians at the last step.
    """
    last = view.scenes[LAST][name]
    if end:
        return [layer_line(end, medians(last), 1.0, end)]
    if len(view.scenes) == 1:
        return [box(step_name(view, LAST), last, 0.0, 1.0)]
    first = view.scenes[FIRST].get(name)
    found = [] if first is None else [box(step_name(view, FIRST), first, -0.15, 0.0)]
    return [*found, box(step_name(view, LAST), last, 0.15, 1.0)]


def box(name: str, series: Json, shift: float, shade: float) -> Series:
    """The boxes of one step, next to their layers' places."""
    low, lower, middle, upper, high = (quantile(series, q) for q in (0.05, 0.25, 0.5, 0.75, 0.95))
    x = {"x": [place + shift for place in range(len(middle))]}
    inner = (lower, upper)
    return Series(name, x, middle, style="points", shade=shade, low=low, high=high, inner=inner)


def histogram_lines(name: str, view: ProbeView) -> list[Series]:
    """The outline of a histogram per step, each up to the same height: steps have other bins.

    Beside boxes only the first and the last step, as they show.
    """
    beside_boxes = not all(is_histogram(title, view) for title in panels_of(view))
    lines = []
    for place, shade in shaded(len(view.scenes), 2 if beside_boxes else LINES):
        series = view.scenes[place].get(name)
        if series is not None and series["counts"]:
            most = max(series["counts"])
            y = [0.0, *(count / most for count in series["counts"]), 0.0]
            x = {"x": [series["edges"][0], *series["edges"]]}
            lines.append(Series(step_name(view, place), x, y, style="stairs", shade=shade))
    return lines


def film(document: Mapping[str, Any], run: str) -> list[Figures]:
    """Some probes over layers, a frame per checkpoint: its line strong, those before it pale.

    None of a single checkpoint, or if no probe that the film shows applies.
    """
    steps = document["checkpoints"]
    panels = [
        (name, series, values)
        for name, most in FILMED.items()
        if name in document["probes"] and (values := document["probes"][name]["values"])["steps"]
        for series in list(values["series"][LAST])[:most]
    ]
    if not panels or len(steps) < 2:
        return []
    return [
        Figures(
            [film_figure(*panel, step) for panel in panels],
            title=f"{run}: step {step:,} of {steps[-1]:,}",
            columns=4,
        )
        for step in steps
    ]


def film_figure(name: str, key: str, values: Mapping[str, Any], step: int) -> Figure:
    """One panel of the film at a step; its vertical axis is the same at all steps."""
    scenes = {
        at: scene[key]
        for at, scene in zip(values["steps"], values["series"], strict=True)
        if key in scene
    }
    known = [y for series in scenes.values() for y in medians(series) if y is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    log = values["log"] and low > 0
    margin = 0.05 * (high - low or 1)
    labels = next(iter(scenes.values()))["labels"]
    x = {"x": [float(place) for place in range(len(labels))]}
    before = [Series("", x, medians(s), style="pale") for at, s in scenes.items() if at < step]
    now = [Series("now", x, medians(scenes[step]), style="both")] if step in scenes else []
    return Figure(
        name=f"film-{name}-{key}",
        title=f"{name}: {key}",
        y=values["unit"].partition(" (")[0],
        xs={"x": "layer"},
        series=[*before, *now],
        log_y=log,
        limits=(low / 1.1, high * 1.1) if log else (low - margin, high + margin),
        ticks=layer_ticks(labels),
    )
