"""The page of an inspection: what the probes found at each checkpoint."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from unitsphere.report.document import Figures, Page, Section, Table
from unitsphere.report.numbers import known
from unitsphere.report.sections.probe_pictures import probe_pictures
from unitsphere.report.sections.probe_view import medians

FOLDER = "inspect"
"""The folder of the pictures, in the run's folder."""
COLUMNS = ("probe", "of", "first", "last", "lowest layer", "highest layer")
SERIES_SHOWN = 2
"""Series of a probe that the table shows; the others are in the figure and the JSON."""


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
