"""The page of an ablation: our change of each row and the paper's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.report.document import Block, Figure, Figures, Page, Section, Table, Text, banded
from unitsphere.report.numbers import figure
from unitsphere.report.runs import Json, Run, data_facts, is_run
from unitsphere.report.sections.curves import unfinished
from unitsphere.report.sections.settings import flag_lines, study_command, study_details
from unitsphere.training.evaluate.text import perplexity

SIGNS = {
    "same": ("same sign", "had the paper's sign"),
    "opposite": ("opposite", "had the opposite sign"),
    "within noise": ("in the noise", "stayed within the noise of the seeds"),
    "better": ("better", "became better"),
    "worse": ("worse", "became worse"),
    "one seed": ("one seed", "had only one seed"),
    "not finished": ("not finished", "did not finish"),
}
"""How a row agrees with the paper: in a cell, and in a sentence about several rows."""
HOW = {
    "shared": "one rate for all rows, tuned on row {tuned_on}, on documents that are not reported",
    "each": "each row's rate is tuned, on documents that are not reported",
    "given": "rates are those of the size or the recipes, not tuned for this study",
}
BRIEF = (0, 1, 2, 3, 4)
"""The columns that fit a terminal."""


def ablate_page(found: Json, folder: Path) -> Page:
    """What an ablation found, with the curves of its rows."""
    runs = [run for row in found["rows"] for run in runs_of(row, found["seeds"], folder)]
    return Page(
        title=found["title"],
        kind=f"Ablation · {found['paper']}",
        answer=answer(found),
        facts=[
            *data_facts(runs),
            ("tokens per run", f"{found['tokens']:,}"),
            ("seeds", str(len(found["seeds"]))),
        ],
        caveats=flags(found),
        unfinished=unfinished(runs),
        sections=[
            Section("results", "Results", results(found)),
            *study_details(runs, found, folder),
        ],
        provenance=found["provenance"],
    )


def runs_of(row: Json, seeds: Sequence[int], folder: Path) -> list[Run]:
    """A row's runs; the folder may hold others, of the tokens or rates of an earlier study."""
    name, lr = row["name"], row["lr"]
    if lr is None:
        return []
    places = [folder / "runs" / name / str(row["tokens"]) / f"lr-{lr:g}-seed-{s}" for s in seeds]
    return [Run(f"{name} {place.name}", name, place) for place in places if is_run(place)]


def results(found: Json) -> list[Block]:
    """The changes as a figure and a table, the means of learned scales, and how it was measured."""
    figure, means = changes(found), means_table(found)
    return [
        *([Figures([figure])] if figure else []),
        changes_table(found),
        *([means] if means else []),
        Text(notes(found), listed=True),
    ]


def changes_table(found: Json) -> Table:
    """A row for each of the paper's, with our change and figures."""
    measure = found["measure"]
    head = ["row", "paper, %", "ours, %", "95% interval", "sign", measure, "bits/byte", "rate"]
    rows = [
        [
            row["label"],
            theirs(row, measure),
            ours(row, measure),
            interval(row["change"]),
            SIGNS[row["sign"]][0] if row["sign"] in SIGNS else "",
            mean_and_seeds(row, measure),
            printed(row["bits_per_byte"]),
            "" if row["lr"] is None else f"{row['lr']:g}",
            f"{row['tokens']:,}",
        ]
        for row in found["rows"]
    ]
    return Table(f"Change of the {measure}", [*head, "tokens"], rows, brief=BRIEF)


def signed(percent: float | None) -> str:
    """A change such as +0.33; empty if there is none."""
    return "" if percent is None else figure(percent, "+.2f")


def interval(change: Mapping[str, Any] | None) -> str:
    """A 95% interval such as -0.10 … +0.41; empty if there is none."""
    if change is None or change["low"] is None:
        return ""
    return f"{signed(change['low'])} … {signed(change['high'])}"


def ours(row: Mapping[str, Any], measure: str) -> str:
    """Our change; of a row that is not compared with another, our figure."""
    if row["against"] is None:
        return printed(row[measure])
    return "" if row["change"] is None else signed(row["change"]["mean"])


def theirs(row: Mapping[str, Any], measure: str) -> str:
    """The paper's change; of a row that is not compared with another, its figure."""
    paper = row["paper"]
    return printed(paper[measure]) if row["against"] is None else signed(paper["change"])


def printed(value: float | None) -> str:
    """A loss or a perplexity."""
    return "" if value is None else figure(value, ".3f")


def mean_and_seeds(row: Mapping[str, Any], measure: str) -> str:
    """The mean, and each seed's figure."""
    losses = [run["loss"] for run in row["runs"].values() if run["loss"] is not None]
    each = [perplexity(loss) if measure == "perplexity" else loss for loss in losses]
    return f"{printed(row[measure])} ({', '.join(map(printed, each))})" if each else ""


def means_table(found: Json) -> Table | None:
    """The learned scales whose means the paper gives: ours and the paper's; None without any."""
    names = list(dict.fromkeys(name for row in found["rows"] for name in row["means"]))
    if not names:
        return None
    rows = [
        [row["label"], *(mean_text(row["means"].get(name)) for name in names)]
        for row in found["rows"]
        if row["means"]
    ]
    return Table("Learned scales", ["mean: ours (paper's)", *names], rows)


def mean_text(mean: Mapping[str, float | None] | None) -> str:
    """Our mean, and the paper's in brackets; empty if the paper gives none."""
    return "" if mean is None else f"{printed(mean['ours'])} ({mean['paper']:.2f})"


def notes(found: Json) -> list[str]:
    """How to read the table and how it was measured, in sentences."""
    measure, seeds = found["measure"], len(found["seeds"])
    rates = HOW[found["rates"]["how"]].format(**found["rates"])
    lines = [
        f"Change of the validation {measure} in percent, lower is better; a row without a sign is "
        f"what others are compared with: its {measure}.",
        f"Paper: {found['protocol']}. Its own noise is not known.",
        f"Ours: {found['about']}; {found['tokens']:,} tokens; {rates}; "
        + (f"{seeds} seeds, compared pair by pair." if seeds > 1 else "one seed, so no spread."),
    ]
    if intervals := sum(bool(interval(row["change"])) for row in found["rows"]):
        lines.append(
            f"Of {intervals} intervals of 95%, {intervals / 20:.1f} are expected to miss by chance."
        )
    return [*lines, *times(found)]


def times(found: Json) -> list[str]:
    """The time of a step against the baseline's, where the paper gives one."""
    base = found["rows"][0]
    if found["timing"] and base["paper"]["seconds_a_step"]:
        return [f"Times are not compared: {found['timing']}."]
    lines = []
    for row in found["rows"][1:]:
        paper, here = row["paper"]["seconds_a_step"], row["seconds_a_step"]
        if paper is None or here is None or not base["seconds_a_step"]:
            continue
        paper = 100 * (paper / base["paper"]["seconds_a_step"] - 1)
        here = 100 * (here / base["seconds_a_step"] - 1)
        lines.append(
            f"Time per step, {row['label']}: paper {paper:+.0f}%, ours {here:+.0f}% (medians of "
            "runs side by side)."
        )
    return lines


def flags(found: Json) -> list[str]:
    """What is unfair and was allowed, rates at an edge of their grid, and runs that did not end."""
    lines = flag_lines(found)
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


def answer(found: Json) -> str:
    """How many rows agree with the paper, and the largest change with its interval."""
    compared = [row for row in found["rows"] if row["against"] is not None]
    counts = {sign: sum(row["sign"] == sign for row in compared) for sign in SIGNS}
    told = [f"{count} {SIGNS[sign][1]}" for sign, count in counts.items() if count]
    changed = [row for row in compared if row["change"] is not None]
    line = f"Of {len(compared)} rows, {', '.join(told)}." if told else "No row is finished."
    if changed:
        most = max(changed, key=lambda row: abs(row["change"]["mean"]))
        between = interval(most["change"])
        between = f"95% interval {between}" if between else "one seed, no interval"
        line += (
            f" The largest change: {most['label']}, {signed(most['change']['mean'])}% of the "
            f"{found['measure']} ({between})."
        )
    return line


def changes(found: Json) -> Figure | None:
    """Our change of each row and the paper's; None if no row has one."""
    rows = [row for row in found["rows"] if row["against"] is not None]
    told = [(float(place), row["change"]) for place, row in enumerate(rows) if row["change"]]
    if not told:
        return None
    xs, own = [place for place, _ in told], [change for _, change in told]
    lows, highs = ([change[end] for change in own] for end in ("low", "high"))
    paper = [row["paper"]["change"] for row in rows]
    places = [float(place) for place in range(len(rows))]
    return Figure(
        name="changes",
        title="Ours and the paper's",
        y=f"change of the {found['measure']}, %",
        xs={"row": "row of the table"},
        series=[
            banded("ours", "row", xs, [c["mean"] for c in own], 0, lows, highs, "points"),
            banded("paper", "row", places, paper, 1, style="points"),
        ],
        caption="Lower is better; bars are 95% intervals over seeds.",
        data=study_command(found),
        ticks={float(place): row["label"] for place, row in enumerate(rows)},
    )
