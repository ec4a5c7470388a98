"""The page of a ladder."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unitsphere.report import ladder as tables
from unitsphere.report.document import (
    Block,
    Figure,
    Figures,
    Folded,
    Page,
    Section,
    Series,
    Table,
)
from unitsphere.report.runs import Json, Run, data_facts, runs_below
from unitsphere.report.sections.settings import environment_section, page_commands, settings_section
from unitsphere.report.sections.studies import banded, provenance_command

LAWS = (
    ("batch", "Best batch by size", "parameters", "batch", "parameters", "tokens a step"),
    ("lr", "Best rate by size", "parameters", "lr", "parameters", "learning rate"),
    ("loss", "Loss by compute", "compute", "loss", "operations", "loss, nats a token"),
)
"""Law, title, x and y of a size's figures, labels of the axes."""
ALLOCATED = (
    ("loss", "Loss by compute", "compute", "loss", "operations", "loss, nats a token"),
    ("parameters", "Best size by compute", "compute", "parameters", "operations", "parameters"),
    ("tokens", "Best data by compute", "compute", "tokens", "operations", "training tokens"),
)
"""The same of the best sizes at the computes."""
AHEAD = 4.0
"""How far beyond its last point a law is drawn, as a ratio."""


def ladder_page(folder: Path, found: Json) -> Page:
    """What a ladder's results.json says: laws, optima, and the grids behind them."""
    runs = [
        Run(path.relative_to(folder).as_posix().removeprefix("runs/"), arm, path)
        for arm in found["arms"]
        for grid in sorted(folder.glob("runs/*.*.*"))  # arm, size, batch
        if grid.name.rsplit(".", 2)[0] == arm
        for path in runs_below(grid)
    ]
    blocks: list[Block] = [Figures([f]) for f in law_figures(found)]
    blocks += [Table(*each) for each in tables.ladder_tables(found)]
    grids = grid_figures(found)
    grid: list[Block] = [Figures([f]) for f in grids]
    sections = [Section("results", "Results", blocks)]
    if grid:
        title = f"The loss of every batch and rate ({len(grids)} sizes)"
        sections.append(Section("grids", "Grids", [Folded(title, grid)]))
    return Page(
        title=folder.resolve().name,
        kind="Ladder",
        answer=answer(found),
        facts=data_facts(runs),
        caveats=[flag["text"] for flag in found["flags"]],
        sections=[
            *sections,
            settings_section(runs),
            environment_section(
                runs,
                [("Runs the ladder", provenance_command(found)), *page_commands(str(folder))],
                found["provenance"],
            ),
        ],
    )


def answer(found: Json) -> str:
    """How the best rate, or the loss, goes with size, with the exponents' intervals."""
    said = []
    for name, arm in found["arms"].items():
        key = next((key for key in ("loss", "lr", "batch") if arm["laws"].get(key)), None)
        if key is None:
            said.append(f"{name} has no law yet")
            continue
        law = arm["laws"][key]
        exponent = tables.spread(law["exponent"], law["exponent_interval"], ".3f")
        x = "compute" if key == "loss" else "size"
        said.append(f"{name}'s {WORDS[key]} goes with {x} to the power {exponent}")
    tests = [
        f"the arms' exponents of {t['law']} differ with p = {t['p']:.2g}" for t in found["tests"]
    ]
    return f"{'; '.join([*said, *tests[:1]])}. Brackets are 95% intervals."


WORDS = {"loss": "lowest loss", "lr": "best rate", "batch": "best batch"}


def law_figures(found: Json) -> list[Figure]:
    """A plot for each law that has a point: the arms' points, and the law through them."""
    figures = []
    asked = bool(found["computes"])
    wanted = [*LAWS[:2], *(ALLOCATED if asked else LAWS[2:])]
    for key, title, x, y, x_label, y_label in wanted:
        rows = (
            "allocations"
            if (key, title, x, y, x_label, y_label) in ALLOCATED and asked
            else "sizes"
        )
        lines: list[Series] = []
        for index, (name, arm) in enumerate(found["arms"].items()):
            lines += law_lines(name, arm[rows], arm["laws"].get(key), (x, y), index)
        if lines:
            figures.append(
                Figure(
                    name=f"law-{key}",
                    title=title,
                    y=y_label,
                    xs={"x": x_label},
                    series=lines,
                    caption="Points: what was found; dashed: the law through them.",
                    log_x=True,
                    log_y=True,
                    data=provenance_command(found),
                )
            )
    return figures


def law_lines(
    name: str, rows: Sequence[Json], law: Json | None, keys: tuple[str, str], colour: int
) -> list[Series]:
    """An arm's points, and its law from the first to beyond the last."""
    points = [(row[keys[0]], row[keys[1]]) for row in rows if row[keys[1]] is not None]
    if not points:
        return []
    xs, ys = ([p[place] for p in points] for place in (0, 1))
    lines = [banded(name, "x", xs, ys, colour, style="points")]
    if law is not None:
        ends = np.geomspace(min(xs), AHEAD * max(xs), 24).tolist()
        heights: list[Any] = [law["coefficient"] * x ** law["exponent"] for x in ends]
        drawn = banded(f"{name}, law", "x", ends, heights, colour, style="dashed")
        lines.append(dataclasses.replace(drawn, group=name))
    return lines


def grid_figures(found: Json) -> list[Figure]:
    """A plot for each arm and size: the loss of each batch over its rates."""
    return [
        Figure(
            name=f"grid-{name}-{size['size']}",
            title=f"{name} {size['size']}: {size['parameters']:,} parameters",
            y="loss, nats a token",
            xs={"lr": "learning rate"},
            series=[
                banded(
                    f"{batch['batch']:,} tokens a step",
                    "lr",
                    [rate["lr"] for rate in batch["rates"]],
                    [rate["loss"] for rate in batch["rates"]],
                    place,
                )
                for place, batch in enumerate(size["batches"])
            ],
            log_x=True,
            data=provenance_command(found),
        )
        for name, arm in found["arms"].items()
        for size in arm["sizes"]
    ]
