"""A comparison's figures for people: tables for the terminal and as Markdown, from one document."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitsphere.report.origin import origin
from unitsphere.report.table import markdown

if TYPE_CHECKING:
    from rich.table import Table

Document = Mapping[str, Any]
LOSSES = ("arm", "tokens", "rate", "loss", "±", "bits/byte", "against")
SPEEDUPS = ("arm", "tokens", "steps", "FLOPs", "time")
MEASURES = ("tokens", "steps", "flops", "time")


def loss_rows(found: Document) -> list[list[str]]:
    """Each arm at each budget: rate, mean loss, its standard error, bits per byte, difference."""
    gaps = {(row["arm"], row["budget"]): row["loss"] for row in found["differences"]}
    rows = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"]:
            gap = gaps.get((name, budget["budget"]))
            rows.append(
                [
                    name,
                    f"{budget['tokens']:,}",
                    number(budget["lr"], "g"),
                    number(budget["loss"], ".4f"),
                    number(budget["standard_error"], ".4f"),
                    number(budget["bits_per_byte"], ".4f"),
                    "" if gap is None else f"{gap['mean']:+.4f}",
                ]
            )
    return rows


def speedup_rows(found: Document) -> list[list[str]]:
    """Each arm's speedups with their intervals."""
    return [[row["arm"], *(ratio(row[key]) for key in MEASURES)] for row in found["speedups"]]


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def ratio(found: Mapping[str, Any]) -> str:
    """A speedup: "1.42 (1.31–1.55)", "1.42 (≥ 1.31)" with only one end, or why there is none."""
    if found["median"] is None:
        return "not reached" if "not reached" in found["reason"] else "–"
    low, high = (number(found[end], ".2f") for end in ("low", "high"))
    span = f"{low}–{high}"
    if found["low"] is None:
        span = "no interval" if found["high"] is None else f"≤ {high}"
    elif found["high"] is None:
        span = f"≥ {low}"
    return f"{found['median']:.2f} ({span})"


def notes(found: Document) -> list[str]:
    """What the tables do not say: targets, reasons, statements and flags, a line each."""
    lines = []
    for row in found["speedups"]:
        to = row.get("to")
        if to:
            lines.append(
                f"{row['arm']}: speedup to {row['baseline']}'s loss {to['loss']:.4f} at "
                f"{to['tokens']:,} tokens; median and 95% interval, bootstrap over "
                f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}"
            )
        lines += [f"{row['arm']}, {why}" for why in reasons(row)]
        if "behind" in row:
            behind, base = row["behind"], f"{row['arm']}: {row['baseline']}"
            lines.append(
                f"{base} comes to its last loss before the smallest budget"
                if behind["median"] is None
                else f"{base} comes to its last loss × {ratio(behind)} sooner"
            )
    last = found["budgets"][-1]
    lines += [row["statement"] for row in found["differences"] if row["budget"] == last]
    lines += [f"[{flag['name']}] {flag['text']}" for flag in found["flags"]]
    return lines


def reasons(row: Mapping[str, Any]) -> list[str]:
    """Why speedups of an arm have no number, each once."""
    said: dict[str, list[str]] = {}
    for key in MEASURES:
        if "reason" in row[key]:
            said.setdefault(row[key]["reason"], []).append(key)
    return [f"{', '.join(keys)}: {reason}" for reason, keys in said.items()]


def comparison_tables(found: Document) -> list["Table"]:
    """Losses and speedups as rich tables, at most 80 columns wide."""
    # An interval below its median: side by side four of them would be too wide.
    gains = [[cell.replace(" (", "\n(") for cell in row] for row in speedup_rows(found)]
    return [
        table(f"Loss at equal tokens, against {found['baseline']}", LOSSES, loss_rows(found)),
        table("Speedup to equal loss", SPEEDUPS, gains),
    ]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """A rich table, its first column to the left."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(head):
        made.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def comparison_page(found: Document, picture: str) -> str:
    """The whole comparison as a Markdown page."""
    losses = [*LOSSES[:-1], f"against {found['baseline']}"]
    rates = [f"- {line}" for line in tuning_lines(found)]
    return "\n".join(
        [
            f"# {', '.join(found['arms'])}\n",
            "Each budget is a run of its own, annealed over it; all arms see the same tokens, and "
            "for a seed in the same order. Losses are in nats per token on the validation split: "
            "mean and standard error over the seeds.\n",
            origin(found["provenance"]),
            markdown(losses, loss_rows(found)),
            f"![loss against tokens]({picture})\n",
            "How many times fewer tokens, steps, operations and seconds an arm needs to the "
            "baseline's last loss:\n",
            markdown(SPEEDUPS, speedup_rows(found)),
            *[f"- {line}" for line in notes(found)],
            "\nRates, tuned on documents that are not reported (loss there):\n",
            *(rates or ["- not tuned"]),
            "",
        ]
    )


def tuning_lines(found: Document) -> list[str]:
    """The grid of each arm and budget."""
    lines = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"]:
            tuned = budget["tuned"]
            tried = ", ".join(f"{r['lr']:g}: {number(r['loss'], '.4f')}" for r in tuned["rates"])
            if tried:
                lines.append(f"{name} at {tuned['tokens']:,}: {tried}")
    return list(dict.fromkeys(lines))
