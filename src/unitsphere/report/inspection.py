"""What `unitsphere inspect` writes and prints of a film's document."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unitsphere.files import own_folder, write_text
from unitsphere.inspection.probes import PROBES
from unitsphere.inspection.values import QUANTILES

FOLDER, DOCUMENT = "inspect", "inspect.json"
COLUMNS = ("probe", "of", "first", "last", "lowest layer", "highest layer")
PROBE_COLUMNS = ("probe", "shows", "figure")
SERIES_SHOWN = 2
"""Series of a probe that the table shows; the others are in the figure and the JSON."""


def write(document: Mapping[str, Any], run: Path, moving: bool = False) -> list[Path]:
    """Write a run's inspect/: the document, and SVG and PNG of each probe; what is to be named.

    moving: film.gif too.
    """
    from unitsphere.report.probe_film import draw_film
    from unitsphere.report.probe_pictures import draw

    folder = own_folder(run / FOLDER)
    path = folder / DOCUMENT
    write_text(path, json.dumps(document, ensure_ascii=False) + "\n")
    for name, probe in document["probes"].items():
        pictures = [folder / f"{name}.{ending}" for ending in ("svg", "png")]
        for picture in pictures:
            picture.unlink(missing_ok=True)
        if probe["applies"]:
            draw(name, probe, run.name, *pictures)
    films = draw_film(document, run.name, folder / "film.gif") if moving else []
    return [path, folder / "*.svg, *.png", *films]


def rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Cells of the table: a line for each of the first series of the probes that apply.

    "first" and "last" are means over layers at the first and last checkpoint that it has.
    """
    found = []
    for name, probe in document["probes"].items():
        scenes = probe["values"]["series"] or probe["values"]["live"]["series"]
        if not probe["applies"] or not scenes:
            continue
        for place, (series, last) in enumerate(scenes[-1].items()):
            if place == SERIES_SHOWN:
                break
            first = scenes[0].get(series, last)
            known = [value for value in heights(last) if value is not None]
            ends = (min(known), max(known)) if len(known) > 1 else (None, None)
            cells = [mean(heights(first)), mean(heights(last)), *ends]
            found.append([name if not place else "", series, *map(shown, cells)])
    return found


def heights(series: Mapping[str, Any]) -> list[float | None]:
    """A value a label: of a distribution the median."""
    if "values" in series:
        return series["values"]
    return [quantiles[QUANTILES.index(0.5)] for quantiles in series["quantiles"]]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def shown(value: float | None) -> str:
    """A figure in few characters."""
    return "–" if value is None else f"{value:.3g}"


def silent(document: Mapping[str, Any]) -> list[str]:
    """A line for each probe that does not apply."""
    return [
        f"{name} does not apply: {probe['why']}"
        for name, probe in document["probes"].items()
        if not probe["applies"]
    ]


def probe_rows() -> list[list[str]]:
    """Cells of the list of probes."""
    return [[name, probe.title, probe.source] for name, probe in PROBES.items()]
