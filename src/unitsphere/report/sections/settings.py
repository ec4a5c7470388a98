"""What the runs were: how their configs differ, all of them in full, and where they ran."""

import shlex
from collections.abc import Mapping, Sequence

from unitsphere.config import flatten
from unitsphere.report.document import Block, Commands, Folded, Section, Table, Text
from unitsphere.report.runs import Run, by_arm, compact

MANY = 6
"""Values of a key within an arm that are named; of more only their number is."""
UNTOLD = ("command", "started", "resumed")
"""Keys of environment.json that are told elsewhere."""


def settings_section(runs: Sequence[Run]) -> Section:
    """The config: what differs between the arms, and all of it."""
    known = [run for run in runs if run.settings]
    if not known:
        text = Text(["No config.json is there: what was trained is not known."])
        return Section("settings", "Settings", [text])
    arms = {name: merged(of) for name, of in by_arm(known).items()}
    keys = list(dict.fromkeys(key for values in arms.values() for key in values))
    blocks: list[Block] = []
    if len(arms) > 1:
        odd = differing_keys(runs)
        columns = ["key", *arms]
        rows = [[key, *(values.get(key, "–") for values in arms.values())] for key in odd]
        note = "A dash: the arm has no such key. All other keys are the same."
        blocks.append(Table("What differs between the arms", columns, rows, [note], plain=True))
    rows = [[key, *(values.get(key, "–") for values in arms.values())] for key in keys]
    title = f"Every key ({len(keys)})"
    blocks.append(Folded(title, [Table("Every key", ["key", *arms], rows, plain=True)]))
    return Section("settings", "Settings", blocks)


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """The keys in which the arms' configs differ; a seed is one of them only between arms."""
    arms = [merged(of) for of in by_arm([run for run in runs if run.settings]).values()]
    keys = dict.fromkeys(key for values in arms for key in values)
    return [key for key in keys if len({values.get(key, "–") for values in arms}) > 1]


def merged(runs: Sequence[Run]) -> dict[str, str]:
    """Key -> value over the runs of an arm; several values where they differ (seeds, rates)."""
    flat = [flatten(run.settings) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    return {key: several([compact(each[key]) for each in flat if key in each]) for key in keys}


def several(values: Sequence[str]) -> str:
    """The values that are not alike, or how many there are."""
    unlike = list(dict.fromkeys(values))
    return ", ".join(unlike) if len(unlike) <= MANY else f"{len(unlike)} values"


def environment_section(
    runs: Sequence[Run], commands: Sequence[tuple[str, str]], source: Mapping[str, object]
) -> Section:
    """Where it ran, and the lines that give the same again.

    source: what a study says of itself (`provenance`).
    """
    known = [run for run in runs if run.environment]
    flat = [flatten({k: v for k, v in r.environment.items() if k not in UNTOLD}) for r in known]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [
        [key.removeprefix("packages."), several([compact(e[key]) for e in flat if key in e])]
        for key in keys
        if any(each.get(key) is not None for each in flat)
    ]
    told = [[k, compact(v)] for k, v in source.items() if v is not None and k != "command"]
    blocks: list[Block] = []
    if told:
        blocks.append(Table("The study", ["what", "value"], told, plain=True))
    if rows:
        title = "The run" if len(known) == 1 else f"The runs ({len(known)})"
        blocks.append(Table(title, ["what", "value"], rows, plain=True))
    if not rows and not told:
        blocks.append(Text(["No environment.json is there: where it ran is not known."]))
    if commands:
        blocks.append(Commands(commands))
    return Section("environment", "Environment and commands", blocks)


def run_commands(runs: Sequence[Run], *folders: str) -> list[tuple[str, str]]:
    """The lines that train the runs again and write this page and its figures."""
    trained = [(f"Trains {run.name}", run.command) for run in runs if run.command]
    return [*trained, *page_commands(*folders)]


def report_command(*folders: str) -> str:
    """The line that writes the page of these folders."""
    return shlex.join(["unitsphere", "report", *folders])


def page_commands(*folders: str) -> list[tuple[str, str]]:
    """The lines that write this page, and its figures as SVG and PNG."""
    line = report_command(*folders)
    return [
        ("Writes this page", line),
        ("Draws its figures as SVG and PNG", f"{line} --figures figures"),
    ]
