"""The page of a quantization study: what rounding the weights costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from unitsphere.report.document import Figure, Figures, Page, Section, Series, Table, banded
from unitsphere.report.numbers import half_range
from unitsphere.report.runs import Json
from unitsphere.report.sections.settings import flag_lines, study_command, study_details

COLUMNS = ("arm", "format", "bits", "error", "loss +", "renormalised +")
LEAST = 1e-4
"""Nats: a smaller increase, or none, stands here in the picture."""


def quantize_page(found: Json, folder: Path) -> Page:
    """What a quantization study found."""
    figures = [bits_figure(found, groups) for groups in (False, True)]
    files = ["quantize.svg", "quantize.png"]
    return Page(
        title="Loss against bits per weight",
        kind="Quantization",
        answer=answer(found),
        facts=[("data", str(found["data"] or "the validation split"))],
        sections=[
            Section(
                "results",
                "Results",
                [
                    Figures([figure for figure in figures if figure.series], files=files),
                    Table("Increase of the loss by format, nats per token", COLUMNS, rows(found)),
                ],
            ),
            *study_details([], found, folder),
        ],
        caveats=flag_lines(found),
        provenance=found["provenance"],
    )


def answer(found: Json) -> str:
    """The format of the fewest bits of each arm that costs less than 0.01 nats."""
    said = []
    for name, arm in found["arms"].items():
        cheap = [(*point(arm, form, False), form) for form in formats(arm)]
        best = min((each for each in cheap if each[1] < 0.01), default=None)
        if best is None:
            said.append(f"every format costs {name} more")
        else:
            said.append(f"{name} can be rounded to {best[2]} ({best[0]:.2f} bits per weight)")
    return f"For less than 0.01 nats per token: {'; '.join(said)}."


def rows(found: Json) -> list[list[str]]:
    """Each arm as it is, then each format: bits, error, and the increase of the loss in nats."""
    cells = []
    for name, arm in found["arms"].items():
        whole = fmean([run["loss"] for run in arm["runs"]])
        cells.append([name, "fp32", "32", "", f"{whole:.4f}", ""])
        for form in formats(arm):
            plain, again = (entries(arm, form, renormalized) for renormalized in (False, True))
            cells.append(
                [
                    name,
                    form,
                    f"{plain[0]['bits']:.2f}",
                    f"{fmean([entry['error'] for entry in plain]):.4f}",
                    increase(plain),
                    increase(again) if again else "–",
                ]
            )
    return cells


def formats(arm: Mapping[str, Any]) -> list[str]:
    """The formats of an arm, in their order."""
    return list(dict.fromkeys(entry["format"] for entry in arm["runs"][0]["formats"]))


def entries(arm: Mapping[str, Any], form: str, renormalized: bool) -> list[Json]:
    """A format's figures of every run of an arm."""
    return [
        entry
        for run in arm["runs"]
        for entry in run["formats"]
        if entry["format"] == form and entry["renormalized"] == renormalized
    ]


def increase(found: Sequence[Json]) -> str:
    """The mean increase, and half of its range over the seeds."""
    values = [entry["increase"] for entry in found]
    return f"{fmean(values):+.4f}{half_range(values, '.4f')}"


def bits_figure(found: Json, groups: bool) -> Figure:
    """The increase of the loss against bits: integers with a scale per row, or per group.

    Solid with the weights as they come back, dotted renormalised; hollow FP8 and NVFP4.
    """
    return Figure(
        name="scale-per-group" if groups else "scale-per-row",
        title="One scale per group" if groups else "Integers, one scale per row",
        y="increase of the loss, nats per token",
        xs={"bits": "bits per weight, scales included"},
        series=[
            line
            for index, (name, arm) in enumerate(found["arms"].items())
            for line in arm_lines(name, arm, groups, index)
        ],
        caption="Dotted: renormalised after rounding. A point at "
        f"{LEAST:g}: no larger increase, or none.{' Hollow: FP8 at 8 bits, and NVFP4.' * groups}",
        log_y=True,
        data=study_command(found),
        same_axes=True,
    )


def arm_lines(name: str, arm: Json, groups: bool, colour: int) -> list[Series]:
    """An arm's lines over integer formats, and its points of FP8 and NVFP4."""
    integers = [f for f in formats(arm) if f.startswith("int") and (":" in f) == groups]
    lines = []
    for renormalized, label in ((False, name), (True, f"{name}, renormalised")):
        told = [point(arm, f, renormalized) for f in integers if entries(arm, f, renormalized)]
        if told:
            x, y = zip(*told, strict=True)
            style = "dotted" if renormalized else "both"
            lines.append(banded(label, "bits", x, y, colour, style=style, group=name))
    for form in ("nvfp4", "fp8"):
        if groups and form in formats(arm):
            bits, y = point(arm, form, False)
            label = f"{name}, {form}"
            lines.append(banded(label, "bits", [bits], [y], colour, style="hollow", group=name))
    return lines


def point(arm: Mapping[str, Any], form: str, renormalized: bool) -> tuple[float, float]:
    """Bits, and the mean increase of the loss, at least LEAST."""
    found = entries(arm, form, renormalized)
    return found[0]["bits"], max(fmean([entry["increase"] for entry in found]), LEAST)
