"""A page as one HTML document: template, style, scripts and plots' data in a single file."""

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unitsphere import __version__
from unitsphere.report.page.parts import NOTHING, Figure, Page, Series, sort_value

STATIC = files("unitsphere.report.page") / "static"
SCRIPTS = ("uplot.min.js", "data.js", "plot.js", "readout.js", "figures.js", "tables.js", "page.js")
STYLES = ("uplot.min.css", "page.css", "parts.css", "print.css")
TABLE_ROWS = 24
"""Rows of the table that stands beside a figure for those who cannot see it."""


def render(
    page: Page, folder: str, stills: Mapping[str, bytes], live: str = "", written: str = ""
) -> str:
    """The document. `stills`: SVG by a figure's name, shown in print and without scripts.

    folder: as the commands that draw name it.
    live: the version that a served page compares with the server's; a page for a file has none.
    written: when, for the foot of the page.
    """
    inner = "\n".join(static(name) for name in SCRIPTS)
    licence = static("uplot.LICENSE")
    script = f'/* uPlot:\n{licence}*/\n(() => {{\n"use strict";\n{inner}\n}})();'
    return template().render(
        page=page,
        draw=f"unitsphere report {shlex.quote(folder)} --figures figures",
        figures={figure.name: figure_json(figure) for figure in page.figures()},
        stills={name: data_uri(svg) for name, svg in stills.items()},
        style=Markup("\n".join(static(name) for name in STYLES)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        live=live,
        written=written,
        version=__version__,
    )


@cache
def static(name: str) -> str:
    """A file that comes with the package."""
    return (STATIC / name).read_text(encoding="utf-8")


@cache
def template() -> Any:
    """The template; everything it is given is escaped, but the package's own style and script."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "sort_value": lambda cell: "" if (value := sort_value(cell)) is None else f"{value:.12g}",
        "anchor": anchor,
    }
    environment.globals |= {"rows_of": figure_rows, "nothing": NOTHING}
    return environment.from_string(static("page.html"))


def anchor(text: str) -> str:
    """A text as an id: letters, digits and dashes."""
    return re.sub(r"[^0-9A-Za-z]+", "-", text).strip("-").lower() or "part"


def data_uri(svg: bytes) -> str:
    """An SVG as the address of an image, which can run nothing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def figure_json(figure: Figure) -> dict[str, Any]:
    """What the scripts draw a figure from."""
    return {
        "title": figure.title,
        "y": figure.y,
        "xs": [{"key": key, "label": label} for key, label in figure.xs.items()],
        "logX": figure.log_x,
        "logY": figure.log_y,
        "ticks": [[place, name] for place, name in figure.ticks.items()],
        "series": [series_json(series) for series in figure.series],
    }


def series_json(series: Series) -> dict[str, Any]:
    """A series; a band only where there is one."""
    said: dict[str, Any] = {
        "name": series.name,
        "group": series.group or series.name,
        "colour": series.colour,
        "style": series.style,
        "smooth": series.smooth,
        "x": {key: list(places) for key, places in series.x.items()},
        "y": list(series.y),
    }
    if series.low is not None and series.high is not None:
        said |= {"low": list(series.low), "high": list(series.high)}
    return said


def figure_rows(figure: Figure) -> list[list[str]]:
    """Some rows of a figure's data: places on the first axis, and each series at or before it."""
    axis = next(iter(figure.xs))
    places = sorted({place for series in figure.series for place in series.x[axis]})
    step = max(1, -(-len(places) // TABLE_ROWS))
    kept = [*places[::step], *(places[-1:] if (len(places) - 1) % step else [])]
    return [
        [figure.ticks.get(place, f"{place:,.6g}"), *(at(s, axis, place) for s in figure.series)]
        for place in kept
    ]


def at(series: Series, axis: str, place: float) -> str:
    """A line's value at a place, or the last before it; of points only what lies there."""
    exact = series.style == "points"
    value = None
    for x, y in zip(series.x[axis], series.y, strict=True):
        if x > place:
            break
        if y is not None and (not exact or x == place):
            value = y
    return "–" if value is None else f"{value:.5g}"
