"""The page of a sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unitsphere.report import sweep as tables
from unitsphere.report.document import Block, Figure, Figures, Page, Section, Table, Text
from unitsphere.report.kinds.run import curve_sections, unfinished
from unitsphere.report.runs import Json, Run, data_facts, found_in
from unitsphere.report.sections.settings import environment_section, page_commands, settings_section
from unitsphere.report.sections.studies import banded, provenance_command


def sweep_page(folder: Path, found: Json) -> Page:
    """What a sweep's results.json says, with the curves of what it reports."""
    runs = reported_runs(folder, found)
    blocks: list[Block] = [Figures(key_figures(found))] if key_figures(found) else []
    for name, arm in found["arms"].items():
        blocks.append(Text(tables.findings(name, arm), listed=True))
        if arm["trials"]:
            rows = [tables.cells(trial) for trial in tables.ranked(arm)]
            blocks.append(Table(f"Trials of {name}", tables.heads(arm), rows))
    failed = [
        f"{name}, trial {trial['number']}: {trial['status']}"
        for name, arm in found["arms"].items()
        for trial in arm["trials"]
        if trial["status"] == "failed"
    ]
    return Page(
        title=folder.resolve().name,
        kind=f"Sweep · {found['method']}",
        answer=" ".join(answer(name, arm) for name, arm in found["arms"].items()),
        facts=[*data_facts(runs), ("tokens per run", f"{found['tokens']:,}")],
        caveats=failed,
        unfinished=unfinished(runs),
        sections=[
            Section("results", "Results", blocks),
            *curve_sections(runs, "The reported runs: the recipe as it is, and the best trial's."),
            settings_section(runs),
            environment_section(
                runs,
                [("Runs the sweep", provenance_command(found)), *page_commands(str(folder))],
                found["provenance"],
            ),
        ],
    )


def answer(name: str, arm: Json) -> str:
    """What the best trial gains over the recipe, with the interval over seeds."""
    if arm["best"] is None:
        return f"{name}: no trial came to its end."
    params = ", ".join(f"{key} = {tables.shown(v)}" for key, v in arm["best"]["params"].items())
    gap = arm["reported"]["difference"]
    if gap is None:
        return f"{name} does best with {params}; not reported against the recipe yet."
    spread = (
        "one seed, no interval"
        if gap["low"] is None
        else f"95% interval {gap['low']:+.4f} to {gap['high']:+.4f}, {gap['n']} seeds"
    )
    return (
        f"{name} does best with {params}: {gap['mean']:+.4f} {tables.unit(arm)} against its recipe "
        f"({spread})."
    )


def key_figures(found: Json) -> list[Figure]:
    """A plot for each key: every finished trial's figure against its value."""
    arms: Mapping[str, Any] = found["arms"]
    first = next((arm["trials"] for arm in arms.values() if arm["trials"]), [])
    return [
        key_figure(key, arms, provenance_command(found))
        for key in (first[0]["params"] if first else [])
    ]


def key_figure(key: str, arms: Mapping[str, Any], command: str) -> Figure:
    """One key's plot; values that are no numbers stand side by side."""
    seen = [t["params"][key] for arm in arms.values() for t in arm["trials"]]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in seen)
    words = [] if numeric else sorted({tables.shown(value) for value in seen})
    lines = []
    for index, (name, arm) in enumerate(arms.items()):
        done = [t for t in arm["trials"] if t["figure"] is not None]
        values = [t["params"][key] for t in done]
        xs = values if numeric else [words.index(tables.shown(value)) for value in values]
        if done:
            ys = [t["figure"] for t in done]
            lines.append(banded(name, "value", xs, ys, index, style="points"))
    return Figure(
        name=f"trials-{key.replace('.', '-')}",
        title=key,
        y=f"{tables.axis(arms)}, split searched on",
        xs={"value": key},
        series=lines,
        caption="Each point is a finished trial.",
        log_x=numeric and tables.spans_ratios(seen),
        data=command,
        ticks=dict(enumerate(words)),
    )


def reported_runs(folder: Path, found: Json) -> list[Run]:
    """The runs whose figures are reported."""
    runs = []
    for name, arm in found["arms"].items():
        for kind, said in (("as_is", "recipe"), ("best", "best")):
            for seed, told in arm["reported"][kind].items():
                place = found_in(folder, told["run"])
                if place is not None:
                    runs.append(Run(f"{name} {said} #{seed}", f"{name} {said}", place))
    return runs
