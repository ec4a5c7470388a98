"""A page as one HTML document: template, style, scripts and the plots' data in a single file."""

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unitsphere import __version__
from unitsphere.report.document import Figure, Page, Playground, Series
from unitsphere.report.numbers import sort_value

STATIC = files("unitsphere.report.render") / "static"
SCRIPTS = ("uplot.min.js", "data.js", "plot.js", "readout.js", "figures.js", "tables.js", "page.js")
STYLES = ("uplot.min.css", "page.css", "parts.css", "print.css")
PLAYGROUND_SCRIPTS, PLAYGROUND_STYLES = ("model.js", "playground.js"), ("playground.css",)
"""Only on a page with a playground."""
TABLE_ROWS = 24
"""Rows of the table below a figure, for readers who cannot see it."""


def html(
    page: Page, command: str, pictures: Mapping[str, bytes], live: str = "", written: str = ""
) -> str:
    """The document. `pictures`: SVG by a figure's name, shown in print and without scripts.

    command: the command that writes the page.
    live: the version that a served page compares with the server's; empty for a file.
    written: when, for the foot of the page.
    """
    plays = any(isinstance(block, Playground) for block in page.blocks())
    scripts = SCRIPTS + PLAYGROUND_SCRIPTS * plays
    styles = STYLES + PLAYGROUND_STYLES * plays
    inner = "\n".join(static(name) for name in scripts)
    licence = static("uplot.LICENSE")
    script = f'/* uPlot:\n{licence}*/\n(() => {{\n"use strict";\n{inner}\n}})();'
    return template().render(
        page=page,
        draw=f"{command} --figures figures",
        figures={figure.name: figure_json(figure) for figure in page.figures()},
        stills={name: data_uri(svg) for name, svg in pictures.items()},
        style=Markup("\n".join(static(name) for name in styles)),
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
    """The template; it escapes everything but the package's own style and script."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "sort_value": lambda cell: "" if (value := sort_value(cell)) is None else f"{value:.12g}",
        "anchor": anchor,
    }
    environment.globals["rows_of"] = figure_rows
    return environment.from_string(static("page.html"))


def anchor(text: str) -> str:
    """A text as an id: letters, digits and dashes."""
    return re.sub(r"[^0-9A-Za-z]+", "-", text).strip("-").lower() or "part"


def data_uri(svg: bytes) -> str:
    """An SVG as the address of an image, which can run nothing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def figure_json(figure: Figure) -> dict[str, Any]:
    """What the scripts draw a figure from; panels name their series by number."""
    numbers = {id(series): number for number, series in enumerate(figure.series)}

    def at(several: Sequence[Series]) -> list[int]:
        return [numbers[id(series)] for series in several]

    return {
        "title": figure.title,
        "y": figure.y,
        "xs": [{"key": key, "label": label} for key, label in figure.xs.items()],
        "logX": figure.log_x,
        "logY": figure.log_y,
        "ticks": [[place, name] for place, name in figure.ticks.items()],
        "places": {key: list(places) for key, places in figure.places.items()},
        "marks": [dataclasses.asdict(mark) for mark in figure.marks],
        "guides": list(figure.guides),
        "level": figure.level,
        "limits": figure.limits,
        "alike": figure.alike,
        "series": [series_json(series) for series in figure.series],
        "panels": [
            {"title": panel.title, "series": at(panel.series), "behind": at(panel.behind)}
            for panel in figure.panels()
        ],
    }


def series_json(series: Series) -> dict[str, Any]:
    """A series; means and a band only where there are some."""
    said: dict[str, Any] = {
        "name": series.name,
        "group": series.legend,
        "colour": series.colour,
        "style": series.style,
        "smooth": series.smooth,
        "x": {key: list(places) for key, places in series.x.items()},
        "y": list(series.y),
    }
    if series.means is not None:
        said["means"] = list(series.means)
    if series.low is not None and series.high is not None:
        said |= {"low": list(series.low), "high": list(series.high)}
    return said


def figure_rows(figure: Figure) -> list[list[str]]:
    """Some rows of a figure's data: places on the first axis, and what each series has there.

    Of each of TABLE_ROWS stretches the place where most series have a value, and the last one.
    """
    axis = next(iter(figure.xs))
    lines = [values_by_place(series, axis) for series in figure.series]
    places = sorted({place for line in lines for place in line})
    size = max(1, -(-len(places) // TABLE_ROWS))
    kept = {
        max(places[start : start + size], key=lambda place: sum(place in line for line in lines))
        for start in range(0, len(places), size)
    }
    return [
        [
            figure.ticks.get(place, f"{place:,.6g}"),
            *(f"{line[place]:.6g}" if place in line else "" for line in lines),
        ]
        for place in sorted(kept | set(places[-1:]))
    ]


def values_by_place(series: Series, axis: str) -> dict[float, float]:
    """Place -> value of a series, where it has one."""
    pairs = zip(series.x[axis], series.y, strict=True)
    return {place: value for place, value in pairs if value is not None}
