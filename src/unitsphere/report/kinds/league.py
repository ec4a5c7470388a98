"""The page of the league: its entries by loss, each with its places."""

from pathlib import Path

from unitsphere.report.document import Block, Page, Section, Table, Text
from unitsphere.report.numbers import known
from unitsphere.report.runs import Json, Run, name_in, runs_below
from unitsphere.report.sections.settings import flag_lines, study_details

COLUMNS = (
    "place",
    "entry",
    "design",
    "optimizer",
    "parameters",
    "rate",
    "loss",
    "±",
    "bits/byte",
    "tokens/s",
)
BRIEF = (0, 1, 3, 5, 6, 7)
"""The columns that fit a terminal."""
HOW = (
    "Loss in nats per token on the validation split: mean and standard error over the seeds. Every "
    "entry has the same tokens, and as many runs to tune its rate. Places: an entry may stand "
    "anywhere between its best and its worst place; within them no difference is significant "
    "(Tukey's test of all pairs, 5% for the whole table)."
)


def league_page(found: Json, folder: Path) -> Page:
    """The standings."""
    runs = [
        Run(name_in(folder, path), row["name"], path)
        for row in found["rows"]
        for path in runs_below(folder / "runs" / row["name"])
    ]
    return Page(
        title=folder.resolve().name,
        kind="League",
        answer=answer(found),
        facts=[("tokens per run", f"{found['rules']['tokens']:,}")],
        caveats=flag_lines(found),
        sections=[
            Section("results", "Results", standings(found)),
            *study_details(runs, found, folder, curves=False),
        ],
        provenance=found["provenance"],
    )


def standings(found: Json) -> list[Block]:
    """The table."""
    rows = [
        [
            between(row),
            row["name"],
            row["architecture"],
            row["optimizer"],
            f"{row['parameters']:,}",
            known(row["lr"], ".3g"),
            f"{row['loss']:.4f}",
            f"{row['standard_error']:.4f}",
            known(row["bits_per_byte"], ".4f"),
            known(row["tokens_per_second"], ",.0f"),
        ]
        for row in found["rows"]
    ]
    return [Table("The league", COLUMNS, rows, brief=BRIEF), Text([HOW])]


def between(row: Json) -> str:
    """An entry's place, and those between which it may stand."""
    span = f" ({row['best']}–{row['worst']})" if row["best"] < row["worst"] else ""
    return f"{row['place']}{span}"


def answer(found: Json) -> str:
    """The best entry, and those that are not significantly worse."""
    rows = found["rows"]
    if not rows:
        return "No entry has a rank."
    first, *others = rows
    level = [row["name"] for row in others if row["best"] == 1]
    said = f"{first['name']} has the lowest loss of {len(rows)} entries, {first['loss']:.4f}"
    if not level:
        return f"{said} nats per token."
    return f"{said} nats per token; {', '.join(level)} are not significantly worse."
