"""What a ladder leaves in its folder: results.json, results.md and pictures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unitsphere.files import write_text
from unitsphere.report.ladder import ladder_page, ladder_tables, notes
from unitsphere.report.ladder_pictures import (
    BatchCurve,
    GridPanel,
    LawLine,
    LawPanel,
    grid_picture,
    law_picture,
)
from unitsphere.studies.core.execute import Executor
from unitsphere.studies.core.kind import Kind, Shown
from unitsphere.studies.core.statistics import PowerLaw
from unitsphere.studies.ladder import LadderStudy, Rung, ladder, parts
from unitsphere.studies.ladder_results import Findings, findings, results
from unitsphere.studies.laws import flops

AHEAD = 4.0
"""How far beyond its last point a law is drawn, as a ratio."""

Point = tuple[float, float, bool]
"""x, y, and whether the law rests on it."""


def train(study: LadderStudy, out: Path, executor: Executor | None = None) -> Findings:
    """Train what is missing of the study, and fit the laws."""
    return findings(study, *ladder(study, out, executor))


def write(study: LadderStudy, found: Findings, document: dict[str, Any], out: Path) -> list[Path]:
    """Write the page and the pictures."""
    pictures = {"grid.png": None, "optima.png": optima_panels(found), "scaling.png": scaling(found)}
    grid_picture([grid_panel(rung) for rung in found.rungs], len(study.sizes), out / "grid.png")
    for name, panels in pictures.items():
        if panels:
            law_picture(panels, out / name)
    write_text(out / "results.md", ladder_page(document, list(pictures)))
    return [out / name for name in ("results.md", *pictures)]


def show(document: dict[str, Any]) -> list[Shown]:
    """The tables, and the notes below them."""
    tables = ladder_tables(document)
    shown = [each for title, *table in tables for each in (title, tuple(table), "")]
    return [*shown, *notes(document)]


def failures(found: Findings) -> list[str]:
    """A line for each run that failed."""
    return [f"{r.planned.name}: {r.error}" for r in found.records if r.status == "failed"]


def grid_panel(rung: Rung) -> GridPanel:
    """The losses of a size's grid; what diverged is left out."""
    curves = []
    for batch, search in rung.searches.items():
        losses = {lr: loss for lr, loss in sorted(search.losses().items()) if math.isfinite(loss)}
        if losses and rung.optimum is not None:
            best = rung.optimum.by_batch[batch]
            curves.append(
                BatchCurve(batch, list(losses), list(losses.values()), (best.at, best.value))
            )
    return GridPanel(f"{rung.arm} {rung.size}: {rung.parameters:,} parameters", curves)


def optima_panels(found: Findings) -> list[LawPanel]:
    """Batch and rate of the sizes, with their laws."""
    batches, rates = [], []
    for arm, laws in found.laws.items():
        best = [(rung.parameters, rung.optimum) for rung in found.of(arm) if rung.optimum]
        batches.append(law_line(arm, [(n, o.batch, o.bracketed) for n, o in best], laws.batch))
        rates.append(law_line(arm, [(n, o.lr, o.bracketed) for n, o in best], laws.lr))
    return [
        LawPanel("parameters", "best batch (tokens)", batches),
        LawPanel("parameters", "best learning rate", rates),
    ]


def scaling(found: Findings) -> list[LawPanel]:
    """Loss over compute; with computes best size and data over compute too."""
    losses, numbers, tokens = [], [], []
    for arm, laws in found.laws.items():
        best = found.allocations[arm]
        points = [(b.compute, b.loss, b.edge is None) for b in best] or [
            (flops(rung.parameters, rung.tokens), rung.optimum.loss, rung.optimum.bracketed)
            for rung in found.of(arm)
            if rung.optimum
        ]
        losses.append(law_line(arm, points, laws.loss))
        within = [(b, b.edge is None) for b in best]
        sizes = [(b.compute, b.parameters, kept) for b, kept in within]
        numbers.append(law_line(arm, sizes, laws.parameters))
        data = [(b.compute, b.tokens, kept) for b, kept in within]
        tokens.append(law_line(arm, data, laws.tokens))
    panels = [LawPanel("compute (operations)", "loss (nats a token)", losses)]
    if found.study.computes:
        panels.append(LawPanel("compute (operations)", "best size (parameters)", numbers))
        panels.append(LawPanel("compute (operations)", "best data (tokens)", tokens))
    return panels


def law_line(name: str, points: Sequence[Point], law: PowerLaw | None) -> LawLine:
    """An arm's points and law, from its first point to beyond its last."""
    kept = [(x, y) for x, y, within in points if within]
    left_out = [(x, y) for x, y, within in points if not within]
    if law is None:
        return LawLine(name, kept, left_out)
    xs = np.geomspace(min(x for x, _ in kept), AHEAD * max(x for x, _ in kept), 40).tolist()
    bands = [(x, law.interval(x)) for x in xs]
    return LawLine(
        name,
        kept,
        left_out,
        line=[(x, law.at(x)) for x in xs],
        band=[(x, *interval) for x, interval in bands if interval is not None],
    )


KIND = Kind("ladder", LadderStudy, train, results, write, show, failures, parts)
