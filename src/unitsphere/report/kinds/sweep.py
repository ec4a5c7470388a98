"""The page of a sweep: its trials, and what the best one gains over the recipe."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.report.document import (
    Block,
    Figure,
    Figures,
    Page,
    Section,
    Series,
    Table,
    Text,
    banded,
)
from unitsphere.report.runs import Json, Run, data_facts, found_in
from unitsphere.report.sections.curves import unfinished
from unitsphere.report.sections.settings import short_key, study_command, study_details

SHOWN = 10
"""Trials that a terminal shows."""
UNITS = {"bits_per_byte": "bits/byte", "loss": "nats/token"}


def sweep_page(found: Json, folder: Path) -> Page:
    """What a sweep found, with the curves of the runs that it reports."""
    runs = reported_runs(folder, found)
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
            Section("results", "Results", results(found)),
            *study_details(
                runs,
                found,
                folder,
                "The reported runs: the recipe as it is, and the best trial's config.",
            ),
        ],
        provenance=found["provenance"],
    )


def results(found: Json) -> list[Block]:
    """A plot for each key, and of each arm what was found and its trials."""
    figures = key_figures(found)
    blocks: list[Block] = [Figures(figures, files=["trials.png"])] if figures else []
    for name, arm in found["arms"].items():
        if arm["trials"]:
            rows = [cells(trial) for trial in ranked(arm)]
            title = f"Trials of {name} ({arm['recipe']}), on the split that was searched on"
            blocks.append(Table(title, heads(arm), rows, most=SHOWN))
        blocks.append(Text(findings(name, arm), listed=True))
    return blocks


def ranked(arm: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An arm's trials, the best first, those without a figure last."""
    return sorted(
        arm["trials"], key=lambda t: (t["figure"] is None, t["figure"] or 0.0, t["number"])
    )


def cells(trial: Mapping[str, Any]) -> list[str]:
    """A row: number, each value, figure."""
    figure = trial["status"] if trial["figure"] is None else f"{trial['figure']:.4f}"
    return [str(trial["number"]), *map(shown, trial["params"].values()), figure]


def shown(value: object) -> str:
    """A value in few characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def heads(arm: Mapping[str, Any]) -> list[str]:
    """The columns; a key without its section, unless that makes two the same."""
    keys = list(arm["trials"][0]["params"])
    last = [short_key(key) for key in keys]
    names = [key if last.count(word) > 1 else word for key, word in zip(keys, last, strict=True)]
    return ["trial", *names, unit(arm)]


def unit(arm: Mapping[str, Any]) -> str:
    """The unit of an arm's figures."""
    return UNITS[arm.get("measure", "bits_per_byte")]


def best_params(arm: Mapping[str, Any]) -> str:
    """The values of the best trial."""
    return ", ".join(f"{key} = {shown(v)}" for key, v in arm["best"]["params"].items())


def findings(name: str, arm: Mapping[str, Any]) -> list[str]:
    """What to know of an arm's search, in sentences."""
    if arm["best"] is None:
        return [f"{name}: no trial is finished"]
    lines = [f"{name}: best is trial {arm['best']['trial']}: {best_params(arm)}"]
    counts = Counter(trial["status"] for trial in arm["trials"])
    lines.append("trials: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    if arm["at_edge"]:
        lines.append(f"best at the edge of what was tried: {', '.join(arm['at_edge'])}")
    if arm["importance"]:
        order = sorted(arm["importance"].items(), key=lambda pair: -pair[1])
        shares = ", ".join(f"{key} {share:.0%}" for key, share in order)
        lines.append(f"share of the trials' variance that a key explains by itself: {shares}")
    return [*lines, *reported(arm)]


def reported(arm: Mapping[str, Any]) -> list[str]:
    """The figures on the reported validation split, and their difference."""
    runs, key, of = arm["reported"], arm.get("measure", "bits_per_byte"), unit(arm)
    lines = []
    for kind, name in (("as_is", "the recipe as it is"), ("best", "the best trial's config")):
        figures = [run[key] for run in runs[kind].values()]
        known = [figure for figure in figures if figure is not None]
        if known:
            each = ", ".join(f"{figure:.4f}" for figure in known)
            lines.append(f"validation, {name}: {sum(known) / len(known):.4f} {of} ({each})")
        odd = [run["status"] for run in runs[kind].values() if run["status"] != "finished"]
        lines += [f"validation, {name}: a run {status}" for status in odd]
    gap = runs["difference"]
    if gap is not None:
        lines.append(f"best − recipe: {gap['mean']:+.4f} {of} ({interval(gap)})")
    return lines


def interval(gap: Mapping[str, Any]) -> str:
    """The interval of a difference over seeds, or that there is none."""
    if gap["low"] is None:
        return "one seed, no interval"
    return f"95% interval {gap['low']:+.4f} to {gap['high']:+.4f}, {gap['n']} seeds"


def answer(name: str, arm: Json) -> str:
    """What the best trial gains over the recipe, with the interval over seeds."""
    if arm["best"] is None:
        return f"{name}: no trial is finished."
    runs, best = arm["reported"], f"{name} does best with {best_params(arm)}"
    gap = runs["difference"]
    if gap is None and runs["best"] == runs["as_is"]:
        return f"{best}, as its recipe is."
    if gap is None:
        return f"{best}; no seed of which both it and the recipe finished, nothing can be said."
    return f"{best}: {gap['mean']:+.4f} {unit(arm)} against its recipe ({interval(gap)})."


def key_figures(found: Json) -> list[Figure]:
    """A plot for each key: every finished trial's figure against its value."""
    arms: Mapping[str, Any] = found["arms"]
    first = next((arm["trials"] for arm in arms.values() if arm["trials"]), [])
    keys = first[0]["params"] if first else []
    return [key_figure(key, arms, study_command(found)) for key in keys]


def key_figure(key: str, arms: Mapping[str, Any], command: str) -> Figure:
    """One key's plot; values that are words stand side by side."""
    seen = [t["params"][key] for arm in arms.values() for t in arm["trials"]]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in seen)
    words = [] if numeric else sorted({shown(value) for value in seen})
    lines: list[Series] = []
    for index, (name, arm) in enumerate(arms.items()):
        done = [t for t in arm["trials"] if t["figure"] is not None]
        values = [t["params"][key] for t in done]
        xs = values if numeric else [words.index(shown(value)) for value in values]
        ys = [t["figure"] for t in done]
        if done:
            lines.append(banded(name, "value", xs, ys, index, style="points"))
        for trial, x, y in zip(done, xs, ys, strict=True):
            if arm["best"] is not None and arm["best"]["trial"] == trial["number"]:
                lines.append(banded("best", "value", [x], [y], index, style="hollow", group=name))
    units = ", ".join(dict.fromkeys(unit(arm) for arm in arms.values()))
    return Figure(
        name=f"trials-{key.replace('.', '-')}",
        title=key,
        y=f"{units}, split searched on",
        xs={"value": key},
        series=lines,
        caption="Each point is a finished trial; the best of each arm has a ring.",
        log_x=numeric and spans_ratios(seen),
        data=command,
        ticks=dict(enumerate(words)),
        same_axes=True,
    )


def spans_ratios(values: Sequence[float]) -> bool:
    """Whether numbers are easier to read on a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > 5


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
