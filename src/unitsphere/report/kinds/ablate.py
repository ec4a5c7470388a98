"""The page of an ablation table."""

from pathlib import Path

from unitsphere.report import ablation as tables
from unitsphere.report.document import Figure, Figures, Page, Section, Table, Text
from unitsphere.report.kinds.run import curve_sections, unfinished
from unitsphere.report.runs import Json, Run, data_facts, runs_below
from unitsphere.report.sections.settings import environment_section, page_commands, settings_section
from unitsphere.report.sections.studies import banded, provenance_command


def ablate_page(folder: Path, found: Json) -> Page:
    """What an ablation's results.json says, with the curves of its rows."""
    rows = {row["name"] for row in found["rows"]}
    every = [(path.relative_to(folder).parts, path) for path in runs_below(folder)]
    runs = [
        Run(f"{parts[1]} {parts[-1]}", parts[1], path)
        for parts, path in every
        if len(parts) > 2 and parts[1] in rows and not any(p.startswith("tune") for p in parts)
    ]
    measure = found["measure"]
    head = ["row", "paper, %", "ours, %", "95% interval", "sign", measure, "bits/byte", "rate"]
    cells = [
        [
            row["label"],
            tables.papers(row, measure),
            tables.own(row, measure),
            tables.interval(row["change"]),
            tables.SIGNS.get(row["sign"], ""),
            tables.printed(row[measure]),
            tables.printed(row["bits_per_byte"]),
            "" if row["lr"] is None else f"{row['lr']:g}",
        ]
        for row in found["rows"]
    ]
    means = tables.mean_heads(found)
    return Page(
        title=found["title"],
        kind=f"Ablation · {found['paper']}",
        answer=answer(found),
        facts=[
            *data_facts(runs),
            ("tokens per run", f"{found['tokens']:,}"),
            ("seeds", str(len(found["seeds"]))),
        ],
        caveats=tables.flags(found),
        unfinished=unfinished(runs),
        sections=[
            Section(
                "results",
                "Results",
                [
                    *([Figures([figure])] if (figure := changes(found)) else []),
                    Table(f"Change of the {measure}", head, cells),
                    *([Table("Learned scales", means, tables.mean_rows(found))] if means else []),
                    Text(tables.notes(found), listed=True),
                ],
            ),
            *curve_sections(runs),
            settings_section(runs),
            environment_section(
                runs,
                [("Runs the table", provenance_command(found)), *page_commands(str(folder))],
                found["provenance"],
            ),
        ],
    )


def answer(found: Json) -> str:
    """How many rows agree with the paper, and the largest change with its interval."""
    compared = [row for row in found["rows"] if row["against"] is not None]
    counts = {sign: sum(row["sign"] == sign for row in compared) for sign in tables.SIGNS}
    told = [f"{count} {SAID[sign]}" for sign, count in counts.items() if count]
    known = [row for row in compared if row["change"] is not None]
    line = f"Of {len(compared)} rows {', '.join(told)}." if told else "No row is finished."
    if known:
        most = max(known, key=lambda row: abs(row["change"]["mean"]))
        spread = tables.interval(most["change"]) or "one seed, no interval"
        line += (
            f" The largest change is that of {most['label']}: {most['change']['mean']:+.2f}% of "
            f"the {found['measure']} ({spread})."
        )
    return line


SAID = {
    "same": "have the paper's sign",
    "opposite": "have the opposite sign",
    "within noise": "are within the noise of the seeds",
    "better": "are better",
    "worse": "are worse",
    "one seed": "have one seed only",
    "not finished": "are not finished",
}


def changes(found: Json) -> Figure | None:
    """Our change of each row beside the paper's; None if no row has one."""
    rows = [row for row in found["rows"] if row["against"] is not None]
    known = [(place, row["change"]) for place, row in enumerate(rows) if row["change"]]
    if not known:
        return None
    paper = [row["paper"]["change"] for row in rows]
    places = [float(place) for place in range(len(rows))]
    xs, own = [float(place) for place, _ in known], [change for _, change in known]
    lows, highs = ([change[end] for change in own] for end in ("low", "high"))
    ours = banded("ours", "row", xs, [c["mean"] for c in own], 0, lows, highs, "points")
    return Figure(
        name="changes",
        title="Ours beside the paper's",
        y=f"change of the {found['measure']}, %",
        xs={"row": "row of the table"},
        series=[ours, banded("paper", "row", places, paper, 1, style="points")],
        caption="Lower is better; bars are 95% intervals over seeds.",
        data=provenance_command(found),
        ticks={float(place): row["label"] for place, row in enumerate(rows)},
    )
