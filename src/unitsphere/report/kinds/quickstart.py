"""The page of a quickstart: arms that were trained once each, against the first."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unitsphere.report.document import Figure, Figures, Page, Section, Table
from unitsphere.report.numbers import duration
from unitsphere.report.runs import Json, Run, data_facts, runs_below
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.curves import curve_sections, unfinished
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import environment_section, run_commands, settings_section
from unitsphere.report.sections.texts import sample_sections

SKIPPED = 0.15
"""The first part of each curve, whose losses would press the rest to the bottom of the picture."""


@dataclass(frozen=True)
class Arm:
    """One arm of a quickstart, as it is reported.

    `bits_per_byte` is of the validation split after the last step. `steps_to_baseline` is
    the first evaluation at or below the baseline's last one (None: not reached); nothing is
    interpolated. `ms_per_step` is the median, without evaluations; `seconds` is the whole run.
    """

    name: str
    recipe: str
    run: str
    parameters: int
    lr: float
    steps: int
    tokens: int
    bits_per_byte: float
    steps_to_baseline: int | None
    ms_per_step: float
    seconds: float


def quickstart_page(found: Json, folder: Path) -> Page:
    """What a quickstart's summary.json says, with the curves of its arms."""
    arms = [Arm(**fields_of(arm)) for arm in found["arms"]]
    runs = [Run(path.name, path.name, path) for path in runs_below(folder)]
    order = [arm.name for arm in arms]
    runs.sort(key=lambda run: order.index(run.name) if run.name in order else len(order))
    baseline = found["baseline"]
    caveat = "One seed, so there is no interval: a difference this small may be the seed's."
    return Page(
        title=folder.resolve().name,
        kind="Quickstart",
        answer=answer(arms, baseline),
        facts=[
            *data_facts(runs),
            *((f"{arm.name}, bits per byte", f"{arm.bits_per_byte:.3f}") for arm in arms),
        ],
        caveats=[
            *([caveat] if arms else []),
            *(f"{each['name']} failed: {each['error']}" for each in found["failed"]),
        ],
        unfinished=unfinished(runs),
        sections=[
            *curve_sections(runs, baseline=baseline),
            Section("results", "Results", [arms_table(arms, baseline)] if arms else []),
            *accuracy_sections(runs),
            *probe_sections(runs),
            *sample_sections(runs, each=1),
            settings_section(runs),
            environment_section(runs, run_commands(runs, str(folder)), {}),
        ],
    )


def fields_of(arm: Json) -> dict[str, Any]:
    """The fields of an `Arm` that are written, and None for those that are not."""
    return {each.name: arm.get(each.name) for each in dataclasses.fields(Arm)}


def arms_table(arms: Sequence[Arm], baseline: str | None) -> Table:
    """A row per arm. Without a baseline (its run failed) no column refers to it."""
    reach = [f"steps to {baseline}'s last loss"] if baseline else []
    head = ["arm", "parameters", "learning rate", "validation bits/byte", *reach]
    rows = [cells(arm, baseline) for arm in arms]
    return Table("The arms", [*head, "ms per step", "training time"], rows)


def cells(arm: Arm, baseline: str | None) -> list[str]:
    """One row of the table."""
    steps = "not reached" if arm.steps_to_baseline is None else f"{arm.steps_to_baseline:,}"
    return [
        arm.name,
        f"{arm.parameters:,}",
        f"{arm.lr:g}",
        f"{arm.bits_per_byte:.3f}",
        *([steps] if baseline else []),
        f"{arm.ms_per_step:.0f}",
        duration(arm.seconds),
    ]


def answer(arms: Sequence[Arm], baseline: str | None) -> str:
    """Which arm is ahead of the baseline, and by how much."""
    if not arms:
        return "No arm is finished."
    best = min(arms, key=lambda arm: arm.bits_per_byte)
    first = next((arm for arm in arms if arm.name == baseline), None)
    if first is None or len(arms) == 1:
        reached = f"{best.name} reached {best.bits_per_byte:.3f} bits per byte"
        return f"{reached}; there is nothing to compare it with."
    if best is first:
        return (
            f"{first.name}, the baseline, is ahead: {first.bits_per_byte:.3f} bits per byte after "
            f"{first.tokens:,} training tokens."
        )
    gain = 1 - best.bits_per_byte / first.bits_per_byte
    return (
        f"After the same {best.tokens:,} training tokens {best.name} is {gain:.1%} ahead of "
        f"{first.name}: {best.bits_per_byte:.3f} against {first.bits_per_byte:.3f} bits per byte "
        "of text that neither was trained on."
    )


def validation_figures(page: Page) -> Figures | None:
    """The validation curves over steps and over time side by side, for curves.png; None without."""
    name = "val-bits-per-byte"
    figure = next((each for each in page.figures() if each.name == name), None)
    if figure is None:
        return None
    shown = dataclasses.replace(figure, marks=[], ends=True, limits=limits(figure))
    over = [
        dataclasses.replace(shown, title=title, xs={key: figure.xs[key]})
        for key, title in (("step", "Equal tokens"), ("time", "Equal time"))
        if key in figure.xs
    ]
    return Figures(over, files=["curves.png"])


def limits(figure: Figure) -> tuple[float, float]:
    """The range of the values after each curve's first part, with a margin."""
    shown = [
        value
        for line in figure.series
        for step, value in zip(line.x["step"], line.y, strict=True)
        if value is not None and step >= SKIPPED * line.x["step"][-1]
    ]
    margin = max(0.06 * (max(shown) - min(shown)), 0.01)
    return min(shown) - margin, max(shown) + margin
