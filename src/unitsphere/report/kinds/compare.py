"""The page of a comparison."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.report import comparison as tables
from unitsphere.report.budgets import BudgetCurve, curves_of
from unitsphere.report.document import (
    Block,
    Figure,
    Figures,
    Folded,
    Mark,
    Page,
    Section,
    Table,
    Text,
)
from unitsphere.report.kinds.run import curve_sections, unfinished
from unitsphere.report.runs import Json, Run, by_arm, data_facts, found_in, lost_text
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import environment_section, page_commands, settings_section
from unitsphere.report.sections.studies import banded, provenance_command
from unitsphere.report.table import short


def compare_page(folder: Path, found: Json) -> Page:
    """What a comparison's results.json says, with the curves of its largest budget."""
    last = study_runs(folder, found, largest=True)
    rates = tables.tuning_lines(found)
    head = [*tables.LOSSES[:-1], f"against {found['baseline']}"]
    blocks: list[Block] = [
        Table("Loss at equal tokens", head, tables.loss_rows(found)),
        Table("Speedup to equal loss", tables.SPEEDUPS, tables.speedup_rows(found)),
    ]
    blocks += [Text(tables.notes(found), listed=True)] if tables.notes(found) else []
    tuned: list[Block] = [Text(rates, listed=True)] if rates else []
    return Page(
        title=folder.resolve().name,
        kind="Comparison",
        answer=answer(found),
        facts=[*data_facts(last), *facts(found)],
        caveats=[*(flag["text"] for flag in found["flags"]), *lost_text(last)],
        unfinished=unfinished(last),
        sections=[
            Section("results", "Results", [*budget_figures(found), *blocks]),
            *(
                [Section("rates", "Rates", [Folded("Rates that were tried", tuned)])]
                if tuned
                else []
            ),
            *curve_sections(last, "The runs of the largest budget, a line a seed."),
            *accuracy_sections(study_runs(folder, found, largest=False), by_arm),
            *probe_sections(last),
            settings_section(last),
            environment_section(last, commands(found, str(folder)), found["provenance"]),
        ],
    )


def answer(found: Json) -> str:
    """The speedup with its interval, and where there is none the difference with its."""
    best = min(
        (row for row in found["speedups"] if row["tokens"]["median"] is not None),
        key=lambda row: -row["tokens"]["median"],
        default=None,
    )
    if best is not None:
        return speedup(best)
    last = found["budgets"][-1]
    said = [row["statement"] for row in found["differences"] if row["budget"] == last]
    return f"{said[0]}." if said else "Nothing can be said: no arm finished beside the baseline."


def speedup(row: Json) -> str:
    """An arm's speedup in tokens: how many times fewer, or more, it needs, with the interval."""
    gain = row["tokens"]
    low, high = gain["low"], gain["high"]
    seeds = f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}"
    more = gain["median"] < 1
    if low is None or high is None:
        spread = f"{seeds}, no interval"
    else:
        ends = (1 / high, 1 / low) if more else (low, high)
        spread = f"95% interval {ends[0]:.2f} to {ends[1]:.2f}, {seeds}"
    times = 1 / gain["median"] if more else gain["median"]
    return (
        f"{row['arm']} needs {times:.2f} times {'more' if more else 'fewer'} tokens than "
        f"{row['baseline']} to come to its loss ({spread})."
    )


def facts(found: Json) -> list[tuple[str, str]]:
    """Each arm's loss at the largest budget."""
    return [
        (f"{name}, loss", tables.number(arm["budgets"][-1]["loss"], ".4f"))
        for name, arm in found["arms"].items()
    ]


def budget_figures(found: Json) -> list[Block]:
    """Loss over budgets: means with the seeds' spread."""
    curves = curves_of(found["arms"])
    if not curves:
        return []
    order = list(found["arms"])
    return [Figures([budget_figure(curves, order, found)])]


def budget_figure(curves: Sequence[BudgetCurve], order: Sequence[str], found: Json) -> Figure:
    """Each point is a run of its own, annealed over its tokens."""
    lines = [
        banded(
            curve.name,
            "tokens",
            curve.tokens,
            curve.means,
            order.index(curve.name),
            [min(each) for each in curve.losses],
            [max(each) for each in curve.losses],
        )
        for curve in curves
    ]
    return Figure(
        name="loss-by-budget",
        title="Loss against training tokens",
        y="validation loss, nats a token",
        xs={"tokens": "training tokens"},
        series=lines,
        caption="Each point: runs annealed over those tokens, the mean over seeds; the band is "
        "from the lowest seed to the highest. An arrow: how many times fewer tokens an arm needs "
        f"to come to the last loss of {found.get('baseline', 'the baseline')}.",
        log_x=True,
        places={"tokens": sorted({tokens for curve in curves for tokens in curve.tokens})},
        marks=speedup_marks(found, order),
        data=provenance_command(found),
    )


def speedup_marks(found: Json, order: Sequence[str]) -> list[Mark]:
    """An arrow for each speedup, from the baseline's last point to where the arm is as low."""
    marks = []
    for row in found["speedups"]:
        factor = row["tokens"]["median"]
        if factor is not None and row.get("to"):
            last = row["to"]["tokens"]
            ends = {"tokens": (float(last), last / factor)}
            name = row["arm"]
            text = f"{name} ×{factor:.2f}"
            marks.append(Mark(ends, row["to"]["loss"], text, name, order.index(name)))
    return marks


def study_runs(folder: Path, found: Json, largest: bool) -> list[Run]:
    """The runs of all budgets, or of the largest, wherever the study lies now."""
    runs = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"][-1:] if largest else arm["budgets"]:
            size = "" if largest else f" {short(budget['tokens'])}"
            for seed in budget["seeds"]:
                place = found_in(folder, seed["run"])
                if place is not None:
                    runs.append(Run(f"{name}{size} #{seed['seed']}", name, place))
    return runs


def commands(found: Json, folder: str) -> list[tuple[str, str]]:
    """The study's own line, and the page's."""
    return [("Runs the study", provenance_command(found)), *page_commands(folder)]
