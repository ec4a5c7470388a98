"""A probe's entry in an inspection's document, for the page, the pictures and the film."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unitsphere.inspection.values import QUANTILES
from unitsphere.report.document import Number
from unitsphere.report.runs import Json

Scene = Mapping[str, Json]
"""Series by name, at one step."""
FIRST, LAST = 0, -1


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


def layer_ticks(labels: Sequence[str]) -> dict[float, str]:
    """Place -> the label of the layer that is there."""
    return {float(place): label or "all" for place, label in enumerate(labels)}
