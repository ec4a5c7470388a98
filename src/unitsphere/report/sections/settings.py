"""How configs differ, what was tuned, all settings, where the runs ran, and the commands."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.config import flatten
from unitsphere.report.document import Block, Commands, Folded, Section, Table, Text
from unitsphere.report.numbers import known
from unitsphere.report.runs import Json, Run, by_arm, value_text
from unitsphere.report.sections.curves import curve_sections

MANY = 6
"""Up to so many different values of a key within an arm are listed; of more only the count is."""
UNTOLD = ("command", "started", "resumed")
"""Keys of environment.json that the page shows elsewhere."""
TUNED = ("arm", "tokens", "points", "loss", "best point")


def study_details(
    runs: Sequence[Run],
    found: Json,
    folder: Path,
    intro: str = "",
    between: Sequence[Section] = (),
    curves: bool = True,
) -> list[Section]:
    """The sections that follow a study's results on its HTML page: its runs and their settings."""
    commands = [("Runs the study", study_command(found)), *page_commands(str(folder))]
    return [
        *(curve_sections(runs, intro) if curves else []),
        *between,
        *([settings_section(runs)] if runs else []),
        environment_section(runs, commands, found.get("provenance", {})),
    ]


def study_command(found: Json) -> str:
    """The command that made a study's figures; empty if its results do not say."""
    return str(found.get("provenance", {}).get("command") or "")


def flag_lines(found: Json) -> list[str]:
    """What limits a study's figures, or is unfair and was allowed, each by its flag."""
    return [f"[{flag['name']}] {flag['text']}" for flag in found.get("flags", ())]


def settings_section(runs: Sequence[Run]) -> Section:
    """The config: what differs between the arms, and all of it."""
    arms = settings_by_arm(runs)
    if not arms:
        text = Text(["There is no config.json: the page cannot say what was trained."])
        return Section("settings", "Settings", [text], detail=True)
    keys = list(dict.fromkeys(key for values in arms.values() for key in values))

    def rows(names: Sequence[str]) -> list[list[str]]:
        return [[key, *(values.get(key, "–") for values in arms.values())] for key in names]

    blocks: list[Block] = []
    if len(arms) > 1:
        note = "A dash: the arm has no such key. All other keys are the same."
        differ = rows(differing_keys(runs))
        title = "What differs between the arms"
        blocks.append(Table(title, ["key", *arms], differ, [note], plain=True))
    table = Table("Every key", ["key", *arms], rows(keys), plain=True)
    blocks.append(Folded(f"Every key ({len(keys)})", [table]))
    return Section("settings", "Settings", blocks, detail=True)


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """The keys in which the arms' configs differ; a seed only counts between arms."""
    arms = settings_by_arm(runs).values()
    keys = dict.fromkeys(key for values in arms for key in values)
    return [key for key in keys if len({values.get(key, "–") for values in arms}) > 1]


def settings_by_arm(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Arm -> key -> value, of the runs whose config is there."""
    arms = by_arm([run for run in runs if run.settings])
    return {arm: merged([flatten(run.settings) for run in of]) for arm, of in arms.items()}


def merged(runs: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Key -> value over what several runs have; several values where they differ, as seeds do."""
    keys = dict.fromkeys(key for each in runs for key in each)
    return {key: several([value_text(each[key]) for each in runs if key in each]) for key in keys}


def several(values: Sequence[str]) -> str:
    """The different values, or how many there are."""
    unlike = list(dict.fromkeys(values))
    return ", ".join(unlike) if len(unlike) <= MANY else f"{len(unlike)} values"


def environment_section(
    runs: Sequence[Run], commands: Sequence[tuple[str, str]], source: Mapping[str, object]
) -> Section:
    """Where the runs ran, and the commands that reproduce them; `source`: a study's provenance."""
    ran = [run for run in runs if run.environment]
    flat = [flatten({k: v for k, v in r.environment.items() if k not in UNTOLD}) for r in ran]
    rows = [
        [key.removeprefix("packages."), value]
        for key, value in merged(flat).items()
        if any(each.get(key) is not None for each in flat)
    ]
    told = [[k, value_text(v)] for k, v in source.items() if v is not None and k != "command"]
    blocks: list[Block] = []
    if told:
        blocks.append(Table("The study", ["what", "value"], told, plain=True))
    if rows:
        title = "The run" if len(ran) == 1 else f"The runs ({len(ran)})"
        blocks.append(Table(title, ["what", "value"], rows, plain=True))
    if not rows and not told:
        blocks.append(Text(["There is no environment.json: the page cannot say where it ran."]))
    if commands:
        blocks.append(Commands(commands))
    return Section("environment", "Environment and commands", blocks, detail=True)


def run_commands(runs: Sequence[Run], *folders: str) -> list[tuple[str, str]]:
    """The commands that train the runs again and write this page and its figures."""
    trained = [(f"Trains {run.name}", run.command) for run in runs if run.command]
    return [*trained, *page_commands(*folders)]


def report_command(*folders: str) -> str:
    """The command that writes the page of these folders."""
    return shlex.join(["unitsphere", "report", *folders])


def page_commands(*folders: str) -> list[tuple[str, str]]:
    """The commands that write this page, and its figures as SVG and PNG."""
    line = report_command(*folders)
    return [
        ("Writes this page", line),
        ("Draws its figures as SVG and PNG", f"{line} --figures figures"),
    ]


def tuning_lines(found: Json) -> list[str]:
    """The rates that were tried for each arm and budget."""
    lines = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"]:
            tuned = budget["tuned"]
            tried = ", ".join(f"{r['lr']:g}: {known(r['loss'], '.4f')}" for r in tuned["rates"])
            if tried:
                lines.append(f"{name} at {tuned['tokens']:,}: {tried}")
    return list(dict.fromkeys(lines))


def tuning_section(found: Json) -> Section:
    """The rates, or the points of several keys, that were tried for each arm."""
    if "tuning" not in found:
        rates = tuning_lines(found) or ["not tuned"]
        tuned = "Rates that were tried on documents that are not reported (loss there)"
        return Section("rates", "Rates", [Folded(tuned, [Text(rates, listed=True)])])
    tuning = found["tuning"]
    said = (
        f"Each arm was tuned by {tuning['trials']} points at most at each budget tuned at, "
        f"{len(tuning['seeds'])} run{'s' * (len(tuning['seeds']) > 1)} each, on documents that are "
        f"not reported ({tuning['method']}). Losses are of those documents."
    )
    searched = {
        (name, budget["tuned"]["tokens"]): budget["tuned"]
        for name, arm in found["arms"].items()
        for budget in arm["budgets"]
        if "trials" in budget["tuned"]
    }
    rows = [
        [name, f"{tokens:,}", str(one["tried"]), *best_cells(one["best"])]
        for (name, tokens), one in searched.items()
    ]
    flat = [
        f"{name} at {tokens:,}, its neighbours: {near}"
        for (name, tokens), one in searched.items()
        if (near := neighbours(one))
    ]
    every = [
        f"{name} at {tokens:,}: {values(trial['params'])}: {known(trial['loss'], '.4f')}"
        for (name, tokens), one in searched.items()
        for trial in sorted(one["trials"], key=lambda t: (t["loss"] is None, t["loss"] or 0.0))
    ]
    return Section(
        "tuning",
        "Tuning",
        [
            Text([said]),
            Table("Best point of each arm", TUNED, rows),
            *([Text(flat, listed=True)] if flat else []),
            Folded("All points, the best first", [Text(every, listed=True)]),
        ],
    )


def best_cells(best: Mapping[str, Any] | None) -> list[str]:
    """The loss of the best point, and what it sets."""
    return (
        ["–", "none trained"] if best is None else [f"{best['loss']:.4f}", values(best["params"])]
    )


def neighbours(one: Mapping[str, Any]) -> str:
    """How much higher the loss is at each neighbour of the best point."""
    return ", ".join(
        f"{short_key(n['key'])} {n['value']} "
        + ("not tried" if n["loss"] is None else f"{n['loss'] - one['best']['loss']:+.4f}")
        for n in one["neighbours"]
    )


def values(params: Mapping[str, Any]) -> str:
    """The values of a point, each key without its section."""
    return ", ".join(f"{short_key(key)} {value}" for key, value in params.items())


def short_key(key: str) -> str:
    """A key without its section."""
    return key.partition(".")[2] or key
