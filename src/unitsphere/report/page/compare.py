"""The page of a comparison."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.report import comparison as tables
from unitsphere.report.budgets import BudgetCurve, curves_of
from unitsphere.report.page.one_run import curve_sections, unfinished
from unitsphere.report.page.parts import Block, Figure, Figures, Folded, Page, Section, Table, Text
from unitsphere.report.page.probes import probe_sections
from unitsphere.report.page.runs import Json, Run, found_in
from unitsphere.report.page.settings import environment_section, page_commands, settings_section
from unitsphere.report.page.studies import banded, provenance_command


def compare_page(folder: Path, found: Json) -> Page:
    """What a comparison's results.json says, with the curves of its largest budget."""
    runs = reported_runs(folder, found)
    last = [run for run in runs if run.name.startswith(tuple(f"{arm} " for arm in found["arms"]))]
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
        facts=facts(found),
        caveats=[flag["text"] for flag in found["flags"]],
        unfinished=unfinished(last),
        sections=[
            Section("results", "Results", [*budget_figures(found), *blocks]),
            *(
                [Section("rates", "Rates", [Folded("Rates that were tried", tuned)])]
                if tuned
                else []
            ),
            *curve_sections(last, "The runs of the largest budget, a line a seed."),
            *probe_sections(last),
            settings_section(runs),
            environment_section(runs, commands(found, str(folder)), found["provenance"]),
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
        "from the lowest seed to the highest.",
        log_x=True,
        data=provenance_command(found),
    )


def reported_runs(folder: Path, found: Json) -> list[Run]:
    """The runs of the largest budget, wherever the study lies now."""
    runs = []
    for name, arm in found["arms"].items():
        for seed in arm["budgets"][-1]["seeds"]:
            place = found_in(folder, seed["run"])
            if place is not None:
                runs.append(Run(f"{name} #{seed['seed']}", name, place))
    return runs


def commands(found: Json, folder: str) -> list[tuple[str, str]]:
    """The study's own line, and the page's."""
    return [("Runs the study", provenance_command(found)), *page_commands(folder)]
