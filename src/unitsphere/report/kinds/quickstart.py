"""The page of a quickstart."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unitsphere.report.document import Page, Section, Table
from unitsphere.report.kinds.run import curve_sections, unfinished
from unitsphere.report.runs import Json, Run, data_facts, runs_below
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import environment_section, run_commands, settings_section
from unitsphere.report.sections.texts import sample_sections
from unitsphere.report.table import Arm, cells, columns


def quickstart_page(folder: Path, found: Json) -> Page:
    """A finished quickstart, from its summary.json."""
    arms = [Arm(**known(arm)) for arm in found["arms"]]
    runs = [Run(path.name, path.name, path) for path in runs_below(folder)]
    order = [arm.name for arm in arms]
    runs.sort(key=lambda run: order.index(run.name) if run.name in order else len(order))
    baseline = found["baseline"]
    head = [" ".join(column.split("\n")) for column in columns(baseline)]
    table = Table("The arms", head, [cells(arm, baseline) for arm in arms])
    failed = [f"{each['name']} failed: {each['error']}" for each in found["failed"]]
    caveat = "One seed, so there is no interval: a difference this small may be the seed's."
    return Page(
        title=folder.resolve().name,
        kind="Quickstart",
        answer=answer(arms, baseline),
        facts=[*data_facts(runs), *arm_facts(arms)],
        caveats=[*([caveat] if arms else []), *failed],
        unfinished=unfinished(runs),
        sections=[
            *curve_sections(runs, baseline=baseline),
            Section("results", "Results", [table]),
            *accuracy_sections(runs),
            *probe_sections(runs),
            *sample_sections(runs, each=1),
            settings_section(runs),
            environment_section(runs, run_commands(runs, str(folder)), {}),
        ],
    )


def known(arm: Json) -> dict[str, Any]:
    """The fields that a row of the table has, whatever else is written."""
    return {each.name: arm.get(each.name) for each in dataclasses.fields(Arm)}


def answer(arms: Sequence[Arm], baseline: str | None) -> str:
    """Which arm is ahead of the baseline, and by how much."""
    if not arms:
        return "No arm has come to its end."
    best = min(arms, key=lambda arm: arm.bits_per_byte)
    first = next((arm for arm in arms if arm.name == baseline), None)
    if first is None or len(arms) == 1:
        return (
            f"{best.name} reached {best.bits_per_byte:.3f} bits per byte; nothing to compare with."
        )
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


def arm_facts(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Each arm's bits per byte."""
    return [(f"{arm.name}, bits per byte", f"{arm.bits_per_byte:.3f}") for arm in arms]
