"""The page of an lr-ramp."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.report import ramp as tables
from unitsphere.report.document import Figure, Figures, Page, Section, Series, Table, Text
from unitsphere.report.kinds.run import curve_sections, unfinished
from unitsphere.report.runs import Json, Run, data_facts, is_number, runs_below
from unitsphere.report.sections.curves import LEAST, POINTS, round_off
from unitsphere.report.sections.settings import environment_section, page_commands, settings_section
from unitsphere.report.sections.studies import provenance_command
from unitsphere.report.sections.thin import places


def ramp_page(folder: Path, found: Json) -> Page:
    """What an lr-ramp's results.json says, and the climbs themselves."""
    runs = [
        Run(f"{arm} {path.name.replace('seed-', '#')}", arm, path)
        for arm in found["arms"]
        for path in runs_below(folder / "runs" / arm)
    ]
    figures = [f for f in [climb_figure(runs, found)] if f]
    return Page(
        title=folder.resolve().name,
        kind="Learning-rate ramp",
        answer=answer(found),
        facts=data_facts(runs),
        caveats=[flag["text"] for flag in found["flags"]],
        unfinished=unfinished(runs),
        sections=[
            Section(
                "results",
                "Results",
                [
                    *([Figures(figures)] if figures else []),
                    Table("Where the loss diverges", tables.COLUMNS, tables.ramp_rows(found)),
                    Text([DIVERGED.format(**found["divergence"])]),
                ],
            ),
            *curve_sections(runs),
            settings_section(runs),
            environment_section(
                runs,
                [("Runs the climb", provenance_command(found)), *page_commands(str(folder))],
                found["provenance"],
            ),
        ],
    )


DIVERGED = (
    "Diverged: the mean of {window} losses was {margin:g} nats or more above its lowest for "
    "{patience} steps in a row, or a loss was not finite."
)


def answer(found: Json) -> str:
    """The rate that each arm bears, with the seeds' range."""
    said = [f"{name} {bears(arm, found['peak'])}" for name, arm in found["arms"].items()]
    return f"How high the rate climbs before the loss diverges: {'; '.join(said)}."


def bears(arm: Json, peak: float) -> str:
    """An arm's median rate, the lowest and the highest seed's."""
    if arm["reached_peak"]:
        return f"did not diverge up to {peak:g}"
    if arm["lr"] is None:
        return "failed"
    rates = [seed["lr"] for seed in arm["seeds"] if seed["lr"] is not None]
    if len(rates) < 2:
        return f"{arm['lr']:.3g} (one seed, no interval)"
    spread = f"seeds from {min(rates):.3g} to {max(rates):.3g}"
    ratio = "" if arm["ratio"] in (None, 1.0) else f", {arm['ratio']:.2f} times the first's"
    return f"{arm['lr']:.3g} ({spread}{ratio})"


def climb_figure(runs: Sequence[Run], found: Json) -> Figure | None:
    """Loss against the rate, a line a run; None if no step is on record."""
    arms, lines = list(found["arms"]), []
    most = max(LEAST, POINTS // max(len(runs), 1))
    for run in runs:
        told = [r for r in run.records if is_number(r.get("lr")) and is_number(r.get("loss"))]
        y = [round_off(record["loss"]) for record in told]
        kept = places(y, most)
        if kept:
            x = [round_off(told[place]["lr"]) or 0.0 for place in kept]
            colour = arms.index(run.arm)
            lines.append(
                Series(run.name, {"lr": x}, [y[place] for place in kept], colour, smooth=True)
            )
    if not lines:
        return None
    return Figure(
        name="climb",
        title="Loss as the rate climbs",
        y="training loss, nats a token",
        xs={"lr": "learning rate, rising at each step"},
        series=lines,
        caption="A line a run; it ends where the loss diverged.",
        log_x=found["start"] > 0,
        data=provenance_command(found),
    )
