"""A sweep's trials as tables, a page and a picture, from its results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS
from unitsphere.report.origin import origin
from unitsphere.report.render.axes import plain_ticks
from unitsphere.report.table import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

SHOWN = 10
"""trials that the terminal's table has; the page has all"""
UNITS = {"bits_per_byte": "bits/byte", "loss": "nats/token"}
PANELS = 3
"""panels of the picture side by side"""


def ranked(arm: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An arm's trials, the best first, those without a figure last."""
    return sorted(
        arm["trials"], key=lambda t: (t["figure"] is None, t["figure"] or 0.0, t["number"])
    )


def cells(trial: Mapping[str, Any]) -> list[str]:
    """A row: number, each value, figure."""
    values = [shown(value) for value in trial["params"].values()]
    figure = trial["status"] if trial["figure"] is None else f"{trial['figure']:.4f}"
    return [str(trial["number"]), *values, figure]


def shown(value: object) -> str:
    """A value in few characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def heads(arm: Mapping[str, Any]) -> list[str]:
    """The columns; of a key without its section, unless that makes two alike."""
    keys = list(arm["trials"][0]["params"])
    last = [key.partition(".")[2] or key for key in keys]
    names = [key if last.count(word) > 1 else word for key, word in zip(keys, last, strict=True)]
    return ["trial", *names, unit(arm)]


def unit(arm: Mapping[str, Any]) -> str:
    """What an arm's figures are in."""
    return UNITS[arm.get("measure", "bits_per_byte")]


def trials_title(name: str, arm: Mapping[str, Any]) -> str:
    """What stands above the table."""
    trials = len(arm["trials"])
    more = f", the best {SHOWN} of {trials} trials" if trials > SHOWN else ""
    return f"{name}, on the split that was searched on{more}:"


def trials_table(arm: Mapping[str, Any]) -> "Table":
    """The best trials of an arm, for the terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in heads(arm):
        table.add_column(column, justify="right", overflow="fold")
    for trial in ranked(arm)[:SHOWN]:
        table.add_row(*cells(trial))
    return table


def findings(name: str, arm: Mapping[str, Any]) -> list[str]:
    """What is to be known of an arm's search, in sentences."""
    if arm["best"] is None:
        return [f"{name}: no trial came to its end"]
    params = ", ".join(f"{key} = {shown(v)}" for key, v in arm["best"]["params"].items())
    lines = [f"{name}: best is trial {arm['best']['trial']}: {params}"]
    counts: dict[str, int] = {}
    for trial in arm["trials"]:
        counts[trial["status"]] = counts.get(trial["status"], 0) + 1
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
        spread = (
            "one seed: nothing is known of the spread"
            if gap["low"] is None
            else f"95% interval {gap['low']:+.4f} to {gap['high']:+.4f}, {gap['n']} seeds"
        )
        lines.append(f"best − recipe: {gap['mean']:+.4f} {of} ({spread})")
    return lines


def sweep_page(found: Mapping[str, Any], picture: str) -> str:
    """The whole as Markdown."""
    parts = [
        f"# Sweep: {found['method']}, {found['tokens']:,} tokens per run\n",
        origin(found["provenance"]),
        f"![figure of every finished trial]({picture})\n",
    ]
    for name, arm in found["arms"].items():
        parts.append(f"## {name}: {arm['recipe']}\n")
        parts.append("".join(f"- {line}\n" for line in findings(name, arm)))
        parts.append(markdown(heads(arm), [cells(trial) for trial in ranked(arm)]))
    return "\n".join(parts)


def sweep_picture(found: Mapping[str, Any], path: Path) -> None:
    """A panel for each key: every finished trial's figure against its value."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = list(next(iter(found["arms"].values()))["trials"][0]["params"])
    rows = -(-len(keys) // PANELS)
    wide = min(PANELS, len(keys))
    figure = Figure(figsize=(3.6 * wide + 0.6, 3.2 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, wide, squeeze=False, sharey=True)
    for index, key in enumerate(keys):
        draw_key(grid[index // wide][index % wide], key, found["arms"])
    for empty in list(grid.flat)[len(keys) :]:
        empty.set_visible(False)
    for row in grid:
        row[0].set_ylabel(f"{axis(found['arms'])}, split searched on")
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)


def axis(arms: Mapping[str, Any]) -> str:
    """The units of the arms' figures."""
    return ", ".join(dict.fromkeys(unit(arm) for arm in arms.values()))


def draw_key(axes: "Axes", key: str, arms: Mapping[str, Any]) -> None:
    """One key's panel; the best trial of each arm is ringed."""
    seen = [t["params"][key] for arm in arms.values() for t in arm["trials"]]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in seen)
    names = [] if numeric else sorted({shown(value) for value in seen})
    for index, (name, arm) in enumerate(arms.items()):
        done = [t for t in arm["trials"] if t["figure"] is not None]
        xs = [t["params"][key] if numeric else names.index(shown(t["params"][key])) for t in done]
        colour = COLOURS[index % len(COLOURS)]
        axes.scatter(xs, [t["figure"] for t in done], s=18, color=colour, label=name, zorder=2)
        rings = [(x, t) for x, t in zip(xs, done, strict=True) if is_best(arm, t)]
        for x, trial in rings:
            axes.scatter([x], [trial["figure"]], s=90, facecolors="none", edgecolors=colour)
    if numeric and spans_ratios(seen):
        axes.set_xscale("log")
    if names:
        axes.set_xticks(range(len(names)), names)
    plain_ticks(axes)
    axes.set_xlabel(key)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(arms) > 1:
        axes.legend(fontsize=8)


def is_best(arm: Mapping[str, Any], trial: Mapping[str, Any]) -> bool:
    """Whether a trial is its arm's best."""
    return arm["best"] is not None and arm["best"]["trial"] == trial["number"]


def spans_ratios(values: Sequence[float]) -> bool:
    """Whether numbers are better seen on a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > 5
