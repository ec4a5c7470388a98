"""The page of an lr-ramp: the learning rate at which each arm's loss diverges."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.report.document import Block, Figure, Figures, Page, Section, Series, Table, Text
from unitsphere.report.numbers import known, round_off
from unitsphere.report.runs import Json, Run, data_facts, is_number, is_run
from unitsphere.report.sections.curves import LEAST, POINTS, places, unfinished
from unitsphere.report.sections.settings import flag_lines, study_command, study_details
from unitsphere.training.guard import smoothed

COLUMNS = ("arm", "diverges at", "each seed", "after steps", "÷ first")
ABOVE = 3.0
"""Nats above the lowest loss that the picture shows."""
DIVERGED = (
    "Diverged: the mean of {window} losses was at least {margin:g} above its lowest (in nats) "
    "for {patience} steps in a row, or a loss was not finite."
)


def ramp_page(found: Json, folder: Path) -> Page:
    """What an lr-ramp found, and the climbs themselves."""
    runs = [
        Run(f"{name} #{seed['seed']}", name, path)
        for name, arm in found["arms"].items()
        for seed in arm["seeds"]
        if is_run(path := folder / "runs" / name / f"seed-{seed['seed']}")
    ]
    figure = climb_figure(runs, found)
    climbs: list[Block] = [Figures([figure], files=["loss.png"])] if figure else []
    table = Table("Where the loss diverges", COLUMNS, ramp_rows(found))
    said = Text([DIVERGED.format(**found["divergence"])])
    return Page(
        title=folder.resolve().name,
        kind="Learning-rate ramp",
        answer=answer(found),
        facts=data_facts(runs),
        caveats=flag_lines(found),
        unfinished=unfinished(runs),
        sections=[
            Section("results", "Results", [*climbs, table, said]),
            *study_details(runs, found, folder),
        ],
        provenance=found["provenance"],
    )


def ramp_rows(found: Json) -> list[list[str]]:
    """Cells of the table, one row per arm."""
    above, rows = f"above {found['peak']:g}", []
    for name, arm in found["arms"].items():
        seeds = [seed for seed in arm["seeds"] if seed["error"] is None]
        rate = "failed" if arm["lr"] is None else f"{arm['lr']:.3g}"
        rows.append(
            [
                name,
                above if arm["reached_peak"] else rate,
                ", ".join(above if seed["lr"] is None else f"{seed['lr']:.3g}" for seed in seeds),
                ", ".join(known(seed["step"], ",") for seed in seeds),
                known(arm["ratio"], ".2f"),
            ]
        )
    return rows


def answer(found: Json) -> str:
    """The rate up to which each arm trains, with the seeds' range."""
    said = [f"{name} {diverges(arm, found['peak'])}" for name, arm in found["arms"].items()]
    return f"How high the rate climbs before the loss diverges: {'; '.join(said)}."


def diverges(arm: Json, peak: float) -> str:
    """An arm's median rate with the lowest and highest seed's, or that it is above the peak."""
    ended = [seed for seed in arm["seeds"] if seed["error"] is None]
    rates = [seed["lr"] for seed in ended if seed["lr"] is not None]
    stayed = len(ended) - len(rates)
    if arm["reached_peak"]:
        some = f" in {stayed} of {len(ended)} seeds" if rates else ""
        return f"did not diverge up to {peak:g}{some}"
    if arm["lr"] is None:
        return "failed"
    if len(ended) < 2:
        return f"{arm['lr']:.3g} (one seed, no interval)"
    highest = f"above {peak:g}" if stayed else f"{max(rates):.3g}"
    spread = f"seeds from {min(rates):.3g} to {highest}"
    ratio = "" if arm["ratio"] in (None, 1.0) else f", {arm['ratio']:.2f} times the first's"
    return f"{arm['lr']:.3g} ({spread}{ratio})"


def climb_figure(runs: Sequence[Run], found: Json) -> Figure | None:
    """Loss against the rate, one line per run; None if no step is on record."""
    window, most = found["divergence"]["window"], max(LEAST, POINTS // max(len(runs), 1))
    climbs = {run.name: climb(run, window) for run in runs}
    lowest = min((y for _, losses in climbs.values() for y in losses), default=None)
    if lowest is None:
        return None
    limits = (lowest - 0.2, lowest + ABOVE)
    lines = [
        line for run in runs for line in climb_lines(run, climbs[run.name], found, most, limits[1])
    ]
    return Figure(
        name="climb",
        title="Loss as the learning rate climbs",
        y=f"training loss, nats per token, mean of the last {window} steps",
        xs={"lr": "learning rate, rising at each step; × where the loss diverged"},
        series=lines,
        caption="One line per run; a cross where its loss diverged.",
        log_x=found["start"] > 0,
        data=study_command(found),
        limits=limits,
    )


def climb(run: Run, window: int) -> tuple[list[float], list[float]]:
    """The rates of a run's steps, and at each the mean of the last losses."""
    told = [r for r in run.records if is_number(r.get("lr")) and is_number(r.get("loss"))]
    losses = [record["loss"] for record in told]
    return [record["lr"] for record in told], smoothed(losses, window)


def climb_lines(
    run: Run, told: tuple[list[float], list[float]], found: Json, most: int, top: float
) -> list[Series]:
    """A run's loss over its rate, and a cross where it diverged, at most as high as `top`."""
    rates, losses = told
    if not losses:
        return []
    colour, kept = list(found["arms"]).index(run.arm), places(losses, most)
    x = {"lr": [round_off(rates[place]) or 0.0 for place in kept]}
    y = [round_off(losses[place]) for place in kept]
    lines = [Series(run.name, x, y, colour, group=run.arm)]
    seeds = found["arms"][run.arm]["seeds"]
    rate = next((s["lr"] for s in seeds if run.folder.name == f"seed-{s['seed']}"), None)
    if rate is not None:
        pairs = zip(rates, losses, strict=True)
        height = min(next((loss for at, loss in pairs if at >= rate), top), top)
        name = f"{run.name} diverged"
        lines.append(Series(name, {"lr": [rate]}, [height], colour, "cross", group=run.arm))
    return lines
