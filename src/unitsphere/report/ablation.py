"""A paper's ablation table with our figures beside the paper's, from its results.json."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unitsphere.report.origin import origin
from unitsphere.report.table import markdown

if TYPE_CHECKING:
    from rich.table import Table

SIGNS = {
    "same": "same sign",
    "opposite": "opposite",
    "within noise": "in the noise",
    "better": "better",
    "worse": "worse",
    "one seed": "one seed",
    "not finished": "not finished",
}
HOW = {
    "shared": "one rate for all rows, tuned on row {tuned_on} on a split of its own",
    "each": "each row's rate is tuned on a split of its own",
    "given": "rates are those of the size or the recipes, not tuned for this study",
}


def signed(percent: float | None) -> str:
    """A change such as +0.33; empty if there is none."""
    return "" if percent is None else f"{percent:+.2f}"


def interval(change: Mapping[str, Any] | None) -> str:
    """A 95% interval such as -0.10 … +0.41; empty if there is none."""
    if change is None or change["low"] is None:
        return ""
    return f"{change['low']:+.2f} … {change['high']:+.2f}"


def own(row: Mapping[str, Any], measure: str) -> str:
    """Our change; of a row that is measured against none, our figure."""
    if row["against"] is None:
        return printed(row[measure])
    return "" if row["change"] is None else signed(row["change"]["mean"])


def papers(row: Mapping[str, Any], measure: str) -> str:
    """The paper's change; of a row that is measured against none, its figure."""
    return (
        printed(row["paper"][measure]) if row["against"] is None else signed(row["paper"]["change"])
    )


def printed(figure: float | None) -> str:
    """A loss or a perplexity."""
    return "" if figure is None else f"{figure:.3f}"


def ablation_table(found: Mapping[str, Any]) -> "Table":
    """The table for a terminal, at most 80 columns wide."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("row", "paper, %", "ours, %", "95% interval", "sign"):
        table.add_column(head, justify="right" if "%" in head else "left", overflow="fold")
    for row in found["rows"]:
        measure = found["measure"]
        table.add_row(
            Text(row["label"]),
            papers(row, measure),
            own(row, measure),
            interval(row["change"]),
            SIGNS.get(row["sign"], ""),
        )
    return table


def notes(found: Mapping[str, Any]) -> list[str]:
    """What is to be known of the table, in sentences."""
    measure, seeds = found["measure"], len(found["seeds"])
    rates = HOW[found["rates"]["how"]].format(**found["rates"])
    lines = [
        f"Change of the validation {measure} in percent, lower is better; a row without a sign is "
        f"what others are measured against: its {measure}.",
        f"Paper: {found['protocol']}. Its own noise is not known.",
        f"Ours: {found['about']}; {found['tokens']:,} tokens; {rates}; "
        + (f"{seeds} seeds, compared pair by pair." if seeds > 1 else "one seed, so no spread."),
    ]
    compared = sum(row["against"] is not None for row in found["rows"])
    if seeds > 1:
        lines.append(
            f"Of {compared} intervals of 95%, {compared / 20:.1f} are expected to miss by chance."
        )
    return [*lines, *times(found), *flags(found)]


def times(found: Mapping[str, Any]) -> list[str]:
    """Time of a step against the baseline's, where the paper gives one."""
    base = found["rows"][0]
    if found["timing"] and base["paper"]["seconds_a_step"]:
        return [f"Times are not compared: {found['timing']}."]
    lines = []
    for row in found["rows"][1:]:
        theirs, ours = row["paper"]["seconds_a_step"], row["seconds_a_step"]
        if theirs is None or ours is None or not base["seconds_a_step"]:
            continue
        paper = 100 * (theirs / base["paper"]["seconds_a_step"] - 1)
        here = 100 * (ours / base["seconds_a_step"] - 1)
        lines.append(
            f"Time per step, {row['label']}: paper {paper:+.0f}%, ours {here:+.0f}% (medians of "
            "runs side by side)."
        )
    return lines


def flags(found: Mapping[str, Any]) -> list[str]:
    """What is unfair and was allowed, rates at an edge of their grid, and runs that did not end."""
    lines = [f"[{flag['name']}] {flag['text']}" for flag in found["flags"]]
    for error in dict.fromkeys(error for row in found["rows"] for error in row["rates_failed"]):
        lines.append(f"A tuning run failed, and its rate was left out: {error}")
    for row in found["rows"]:
        if row["lr_at_edge"] and row["lr"] is not None:
            lines.append(f"{row['name']}: the rate {row['lr']:g} is at the edge of those tried.")
        if row["lr"] is None:
            lines.append(f"{row['name']}: no rate of its grid trained.")
        for seed, run in row["runs"].items():
            if run["status"] != "finished":
                lines.append(f"{row['name']}, seed {seed}, {run['status']}: {run['error']}")
    return lines


def ablation_page(found: Mapping[str, Any]) -> str:
    """The whole as Markdown."""
    measure = found["measure"]
    heads = ["row", "paper", "ours", "95% interval", "sign", measure, "bits/byte", "lr", "tokens"]
    rows = [
        [
            row["label"],
            papers(row, measure),
            own(row, measure),
            interval(row["change"]),
            SIGNS.get(row["sign"], ""),
            spread(row, measure),
            printed(row["bits_per_byte"]),
            "" if row["lr"] is None else f"{row['lr']:g}",
            f"{row['tokens']:,}",
        ]
        for row in found["rows"]
    ]
    return "\n".join(
        [
            f"# {found['title']}\n",
            f"{found['paper']}.\n",
            origin(found["provenance"]),
            "".join(f"- {line}\n" for line in notes(found)),
            markdown(heads, rows),
            *([markdown(mean_heads(found), mean_rows(found))] if mean_heads(found) else []),
        ]
    )


def mean_heads(found: Mapping[str, Any]) -> list[str]:
    """The columns of `mean_rows`: the learned scales whose means the paper gives, if any."""
    names = dict.fromkeys(name for row in found["rows"] for name in row["means"])
    return ["mean: ours (paper's)", *names] if names else []


def mean_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The learned scales' means, a line for each row that has some."""
    return [
        [
            row["label"],
            *(
                mean_text(row["means"][n]) if n in row["means"] else ""
                for n in mean_heads(found)[1:]
            ),
        ]
        for row in found["rows"]
        if row["means"]
    ]


def mean_text(mean: Mapping[str, float | None]) -> str:
    """Ours, and the paper's behind it."""
    return f"{printed(mean['ours'])} ({mean['paper']:.2f})"


def spread(row: Mapping[str, Any], measure: str) -> str:
    """The mean, and each seed's figure."""
    losses = [run["loss"] for run in row["runs"].values() if run["loss"] is not None]
    each = [math.exp(loss) if measure == "perplexity" else loss for loss in losses]
    return f"{printed(row[measure])} ({', '.join(map(printed, each))})" if each else ""
