"""A probe's entry in an inspection's document, for every page that draws it, and as a film."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unitsphere.inspection.values import QUANTILES
from unitsphere.report.document import Figure, Figures, Number, Series
from unitsphere.report.runs import Json

Scene = Mapping[str, Json]
"""Series by name, at one step."""
FIRST, LAST = 0, -1
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


@dataclass(frozen=True)
class ProbeView:
    """The series of each step, to be drawn over steps or over layers; log: whether that axis is."""

    steps: Sequence[int]
    scenes: Sequence[Scene]
    form: str
    over_steps: bool
    log: bool

    def labels(self) -> list[str]:
        """The labels of all series at all steps, in the order of their first."""
        series = [series for scene in self.scenes for series in scene.values()]
        return list(dict.fromkeys(label for each in series for label in each["labels"]))

    def lines(self) -> dict[tuple[str, str], list[Number]]:
        """(series, label) -> its value at each step, None where it has none."""
        found: dict[tuple[str, str], list[Number]] = {}
        for place, scene in enumerate(self.scenes):
            for name, series in scene.items():
                for label, value in zip(series["labels"], means(series), strict=True):
                    line = found.setdefault((name, label), [None] * len(self.steps))
                    line[place] = value
        return found


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


def film(document: Mapping[str, Any], run: str) -> list[Figures]:
    """Some probes over layers, a frame per checkpoint: its line strong, those before it pale.

    None of a single checkpoint, or if no probe that the film shows applies.
    """
    steps = document["checkpoints"]
    panels = [
        (name, series, document["probes"][name]["values"])
        for name, most in FILMED.items()
        if name in document["probes"] and document["probes"][name]["values"]["steps"]
        for series in list(document["probes"][name]["values"]["series"][-1])[:most]
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
        ticks=dict(enumerate(label or "all" for label in labels)),
    )
