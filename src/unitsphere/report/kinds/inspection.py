"""The page of an inspection: what the probes found at each checkpoint.

Time and depth are shades from light to dark: the later or the deeper, the darker.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from unitsphere.inspection.probes import PROBES
from unitsphere.inspection.updates import relative_variance
from unitsphere.report.document import Figure, Figures, Number, Page, Section, Series, Table
from unitsphere.report.numbers import known
from unitsphere.report.sections.probe_view import ProbeView, medians

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


def inspection_page(document: Mapping[str, Any], run: str) -> Page:
    """What an inspection found: a table, and the plots of each probe that applies."""
    told = {name: probe for name, probe in document["probes"].items() if probe["applies"]}
    steps = document["checkpoints"]
    first, last = f"{steps[0]:,}", f"{steps[-1]:,}"
    figures = [
        Figures(
            probe_figures(name, probe),
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


@dataclass(frozen=True)
class History(ProbeView):
    """A probe's view with its series in panels."""

    def panels(self) -> dict[str, list[str]]:
        """Panel -> its series: one, and the dotted ones of its panel."""
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
        """Whether a panel shows boxes; then the others show only the first and last step too."""
        return self.form == "distribution" and not all(map(self.single, self.panels()))


def history_of(name: str, values: Mapping[str, Any]) -> History:
    """What to draw: the checkpoints, or the live records where these have more steps to show."""
    over_steps, live = values["axis"] == "step", values["live"]
    source = values
    if not values["steps"] or (over_steps and len(live["steps"]) > len(values["steps"])):
        source = live
    steps, scenes = source["steps"], source["series"]
    relative = PROBES[name].relative and len(steps) > 1
    if relative:
        scenes = relative_variance(scenes)
    over_steps = over_steps and len(steps) > 1
    return History(steps, scenes, values["form"], over_steps, values["log"] and not relative)


def probe_figures(name: str, probe: Mapping[str, Any]) -> list[Figure]:
    """The plots of a probe that applies, one per series, from its entry in the document."""
    history, unit = history_of(name, probe["values"]), probe["values"]["unit"]
    if PROBES[name].relative and history.over_steps:
        unit += ", over its sum over the steps"
    under = "depth (layer / layers)" if name == "lambda_by_depth" else "layer"
    panels = history.panels()
    apart = history.form == "distribution" and any(map(history.single, panels))
    figures = []
    for title, names in panels.items():
        histogram = history.form == "distribution" and history.single(title)
        labels = history.scenes[-1][title]["labels"]
        numbered = {float(place): label or "all" for place, label in enumerate(labels)}
        figures.append(
            Figure(
                name=f"{name}-{title}",
                title=title,
                y="frequency" if histogram else unit,
                xs={"x": unit if histogram else "step" if history.over_steps else under},
                series=[line for each in names for line in panel_lines(each, title, history)],
                caption=probe["source"],
                log_x=history.log and histogram,
                log_y=history.log and not histogram,
                ticks={} if histogram or history.over_steps else numbered,
                level=1.0 if name in OVER_ONE else None,
                same_axes=name != "learned_scales" and not apart,
            )
        )
    return figures


def panel_lines(name: str, panel: str, history: History) -> list[Series]:
    """The lines of one series in a panel."""
    end = name.removeprefix(panel)
    if history.form == "distribution":
        return histograms(name, history) if history.single(panel) else boxes(name, end, history)
    if history.over_steps:
        return over_steps(name, end, history)
    places = some_of(len(history.scenes))
    return [
        layer_line(step_name(history, place), series["values"], shade, end)
        for shade, place in zip(shades(len(places)), places, strict=True)
        if (series := history.scenes[place].get(name)) is not None
    ]


def some_of(count: int) -> list[int]:
    """At most LINES of the numbers below `count`, evenly spaced, with the first and the last."""
    if count <= LINES:
        return list(range(count))
    return sorted({round(i * (count - 1) / (LINES - 1)) for i in range(LINES)})


def shades(count: int) -> list[float]:
    """The shades of the first to the last; a single one is light."""
    return [place / max(count - 1, 1) for place in range(count)]


def step_name(history: History, place: int) -> str:
    """A step's name in the legend."""
    return f"step {history.steps[place]:,}"


def layer_line(name: str, values: Sequence[Number], shade: float, end: str) -> Series:
    """Values over layers; dotted with the meaning of its `end` as the name, if it has one."""
    x = {"x": [float(place) for place in range(len(values))]}
    style = "dotted" if end else "both"
    return Series(DOTTED.get(end, name), x, values, style=style, shade=shade)


def over_steps(name: str, end: str, history: History) -> list[Series]:
    """A line per layer, over steps."""
    labels, values = history.scenes[-1][name]["labels"], history.lines()
    chosen = some_of(len(labels))
    lines = []
    for shade, label in zip(shades(len(chosen)), (labels[i] for i in chosen), strict=True):
        steps = zip(history.steps, values[name, label], strict=True)
        known = {float(step): value for step, value in steps if value is not None}
        shown = DOTTED.get(end) or (f"layer {label}" if label else "all")
        style = "dotted" if end else "line"
        lines.append(Series(shown, {"x": [*known]}, [*known.values()], style=style, shade=shade))
    return lines


def boxes(name: str, end: str, history: History) -> list[Series]:
    """For each layer 5–95% as a line, 25–75% as a bar, the median as a dot: first and last step.

    A dotted series: a line of its medians at the last step.
    """
    last = history.scenes[-1][name]
    if end:
        return [layer_line(end, medians(last), 1.0, end)]
    if len(history.scenes) == 1:
        return [box(step_name(history, -1), last, 0.0, 1.0)]
    first = history.scenes[0].get(name)
    found = [] if first is None else [box(step_name(history, 0), first, -0.15, 0.0)]
    return [*found, box(step_name(history, -1), last, 0.15, 1.0)]


def box(name: str, series: Mapping[str, Any], shift: float, shade: float) -> Series:
    """The boxes of one step, next to their layers' places."""
    _, low, lower, middle, upper, high, _ = (
        list(q) for q in zip(*series["quantiles"], strict=True)
    )
    x = {"x": [place + shift for place in range(len(middle))]}
    ends = {"low": low, "high": high, "inner": (lower, upper)}
    return Series(name, x, middle, style="points", shade=shade, **ends)


def histograms(name: str, history: History) -> list[Series]:
    """The outline of a histogram per step, each up to the same height: steps have other bins."""
    places = some_of(len(history.scenes))
    if history.boxed:
        places = sorted({places[0], places[-1]})
    lines = []
    for shade, place in zip(shades(len(places)), places, strict=True):
        series = history.scenes[place].get(name)
        if series is not None and series["counts"]:
            most = max(series["counts"])
            y = [0.0, *(count / most for count in series["counts"]), 0.0]
            x = {"x": [series["edges"][0], *series["edges"]]}
            label = step_name(history, place)
            lines.append(Series(label, x, y, style="stairs", shade=shade))
    return lines
