"""How far the rates of `optim.transfer` are from the best: cells of width × depth × horizon.

In each cell the rate that the law gives is trained, and rates around it, until the best lies
between two worse ones. The gap is the loss at the law's rate less the lowest of the interpolant
over log rate (laws.py). An arm's best rates give the exponents that fit,

    log lr* = a + b_w·log d + b_L·log L + b_T·log T

by least squares with Student's 95% intervals, with the exponents of the law.

[arms]
gpt-plus = { recipe = "quickstart/gpt-plus", set = { optim = { transfer = "nu" } } }
[cells.small]
width = [64, 128]
depth = [4, 8]
tokens = [1_000_000, 4_000_000]
[cells.large]
width = [256]
depth = [4]
tokens = [1_000_000]
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import Executor, failure_lines
from unitsphere.studies.core.fairness import version_flags
from unitsphere.studies.core.kind import Kind, Part, provenance, searched, study_folder
from unitsphere.studies.core.plan import arm_config, at_budget, own_rate
from unitsphere.studies.core.spec import SEEDS, ArmSpec, Study, check_numbers
from unitsphere.studies.core.statistics import LEVEL
from unitsphere.studies.core.tune import Search, arm_search, rounded, search
from unitsphere.studies.laws import Lowest, lowest
from unitsphere.training.transfer import is_open

SIZES = ("width", "depth", "tokens")
SIZE_KEYS = ("model.d_model", "model.n_layers", "model.n_heads")
"""Keys that the cells and head_size set."""


@dataclass(frozen=True)
class Cells:
    """Every combination of some widths, depths and horizons."""

    width: list[int]
    """model.d_model"""
    depth: list[int]
    """model.n_layers"""
    tokens: list[int]
    """training tokens"""

    def __post_init__(self) -> None:
        for name in SIZES:
            check_numbers(f"cells: {name}", getattr(self, name), least=1)


@dataclass(frozen=True, kw_only=True)
class TransferStudy(Study):
    """What `transfer` asks in addition to all studies. [tune] says which rates are tried."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = (*Study.CHANGEABLE, "seeds:")

    cells: dict[str, Cells]
    head_size: int = 64
    """dimensions of a head at every width: model.n_heads is the width divided by it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cells:
            raise UserError("'cells' must name at least one table of width, depth and tokens")
        if self.tune.points < 3 or self.tune.budgets:
            raise UserError("tune.points must be at least 3, and tune.budgets left out")
        sets = {"set": self.set, **{f"arms.{name}.set": arm.set for name, arm in self.arms.items()}}
        for where, key in itertools.product(sets, SIZE_KEYS):
            if key in sets[where]:
                raise UserError(f"'{where}.{key}' cannot be set: the cells and head_size decide it")
        for name, cells in self.cells.items():
            odd = [width for width in cells.width if self.head_size < 1 or width % self.head_size]
            if odd:
                raise UserError(
                    f"cells.{name}: the width {odd[0]} is not divisible by head_size "
                    f"{self.head_size}: change one of them"
                )

    def sizes(self) -> list[tuple[int, int, int]]:
        """Width, depth and tokens of every cell, none of them twice."""
        blocks = (itertools.product(c.width, c.depth, c.tokens) for c in self.cells.values())
        return sorted(set(itertools.chain(*blocks)))

    def cell(self, arm: str, width: int, depth: int) -> tuple[str, Study]:
        """The name of an arm at a size, and the study of it."""
        spec, name = self.arms[arm], f"{arm}.d{width}-l{depth}"
        sizes = dict(zip(SIZE_KEYS, (width, depth, width // self.head_size), strict=True))
        arms = {name: ArmSpec(spec.recipe, {**spec.set, **sizes}, spec.lr)}
        return name, Study(arms=arms, set=self.set, seeds=self.seeds, tune=self.tune, run=self.run)


@dataclass(frozen=True)
class Cell:
    """An arm at a width, depth and horizon: the law's rate, and the rates that were tried."""

    arm: str
    width: int
    depth: int
    tokens: int
    rate: float
    search: Search

    @property
    def loss(self) -> float:
        """At the law's rate; infinite if it diverged, NaN if it failed."""
        return self.search.losses().get(self.rate, math.nan)

    @property
    def best(self) -> Lowest | None:
        """The lowest loss over log rate; None if every rate diverged or failed."""
        losses = self.search.losses()
        known = any(map(math.isfinite, losses.values()))
        return lowest(list(losses), list(losses.values())) if known else None


def transfer(study: TransferStudy, out: Path, executor: Executor | None = None) -> list[Cell]:
    """Train what is missing of the study in the folder `out`.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then resumes.
    """
    parts(study)  # refuses an arm without a law, before anything is written
    with study_folder(out, study, executor) as executor:
        cells = [cell_of(study, out, arm, *at) for arm in study.arms for at in study.sizes()]
        searches = [cell.search for cell in cells]
        search(searches, executor, study.tune.ratio, study.tune.growths)
    return cells


def cell_of(study: TransferStudy, out: Path, arm: str, width: int, depth: int, tokens: int) -> Cell:
    """A cell of which nothing is trained yet."""
    name, one = study.cell(arm, width, depth)
    rate = rounded(own_rate(one, name, tokens))
    return Cell(arm, width, depth, tokens, rate, arm_search(out, one, name, tokens))


def parts(study: TransferStudy) -> list[Part]:
    """What would be trained.

    Raises UserError for an arm without a law or with a rate of its own, and for horizons of equal
    steps.
    """
    if study.seeds != SEEDS:
        raise UserError("'seeds' is not for a transfer, whose runs have tune.seeds: leave it out")
    found: dict[tuple[str, int], Part] = {}
    for arm, spec in study.arms.items():
        if spec.lr is not None:
            raise UserError(f"arms.{arm}: 'lr' is not for a transfer: optim.base.lr is the rate")
        for width, depth, tokens in study.sizes():
            name, one = study.cell(arm, width, depth)
            optim = arm_config(one, name).optim
            if optim.transfer == "none":
                raise UserError(f"arms.{arm}: set optim.transfer, whose rates are to be measured")
            if not is_open(optim.lr):
                raise UserError(
                    f"arms.{arm}: {spec.recipe} sets optim.lr itself, so no law does: leave it out"
                )
            config = at_budget(one, name, tokens)
            steps, batch = config.train.steps, config.train.batch_tokens
            if (name, steps) in found:
                same = f"{steps:,} steps of {batch:,} tokens"
                raise UserError(f"cells: two horizons of {name} have {same}: leave one out")
            found[name, steps] = searched(study, f"{name} {short(tokens)}", config)
    return list(found.values())


@dataclass(frozen=True)
class Exponent:
    """The exponent of a size in the best rates, with its 95% interval, and the law's exponent.

    low and high are None where there are no more points than exponents.
    """

    size: str
    value: float
    low: float | None
    high: float | None
    law: float


def exponents(cells: Sequence[Cell]) -> list[Exponent]:
    """The exponents that fit an arm's best rates, of the sizes that vary.

    Cells whose best rate lies at an edge are left out. None of them where cells are too few.
    """
    found = [(cell, cell.best) for cell in cells]
    inside = [(cell, best.at) for cell, best in found if best is not None and best.edge is None]
    names = [name for name in SIZES if len({getattr(cell, name) for cell, _ in inside}) > 1]
    if not names or len(inside) <= len(names):
        return []
    X = np.log([[getattr(cell, name) for name in names] for cell, _ in inside])
    X = np.column_stack([np.ones(len(inside)), X - X.mean(axis=0)])
    if np.linalg.matrix_rank(X) < X.shape[1]:
        return []
    fitted, margins = least_squares(X, np.log([rate for _, rate in inside]))
    law, _ = least_squares(X, np.log([cell.rate for cell, _ in inside]))
    return [
        Exponent(
            name,
            float(fitted[i]),
            None if margins is None else float(fitted[i] - margins[i]),
            None if margins is None else float(fitted[i] + margins[i]),
            float(law[i]),
        )
        for i, name in enumerate(names, 1)
    ]


def least_squares(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The coefficients of y = X·b, and half of their 95% intervals; None without spare points."""
    b, *_ = np.linalg.lstsq(X, y, rcond=None)
    spare = len(y) - X.shape[1]
    if spare == 0:
        return b, None
    variance = float(((y - X @ b) ** 2).sum()) / spare
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, spare))
    return b, quantile * np.sqrt(variance * np.diag(np.linalg.inv(X.T @ X)))


def document(study: TransferStudy, cells: Sequence[Cell]) -> dict[str, Any]:
    """Everything that was found; every null has its reason among the flags."""
    records = [record for cell in cells for record in cell.search.records]
    arms = {arm: [cell for cell in cells if cell.arm == arm] for arm in study.arms}
    return {
        "arms": {
            arm: {
                "recipe": study.arms[arm].recipe,
                "cells": [cell_figures(cell) for cell in own],
                "exponents": [dataclasses.asdict(found) for found in exponents(own)],
            }
            for arm, own in arms.items()
        },
        "flags": [
            *flags(study, cells),
            *(dataclasses.asdict(flag) for flag in version_flags(records)),
        ],
        "provenance": provenance(records),
    }


def cell_figures(cell: Cell) -> dict[str, Any]:
    """A cell: every rate with its loss, the law's rate, the best, and the gap between them."""
    best, losses = cell.best, cell.search.losses()
    gap = None if best is None or not math.isfinite(cell.loss) else cell.loss - best.value
    return {
        "width": cell.width,
        "depth": cell.depth,
        "tokens": cell.tokens,
        "lr": cell.rate,
        "loss": None if gap is None else cell.loss,
        "best_lr": None if best is None else best.at,
        "best_loss": None if best is None else best.value,
        "edge": None if best is None else best.edge,
        "gap": gap,
        "rates": {
            f"{rate:g}": loss if math.isfinite(loss) else None
            for rate, loss in sorted(losses.items())
        },
    }


def flags(study: TransferStudy, cells: Sequence[Cell]) -> list[dict[str, str]]:
    """What a reader must know of the figures."""
    found = []
    for cell in cells:
        best, at = cell.best, f"{cell.arm} {cell.width}×{cell.depth}, {short(cell.tokens)} tokens"
        if best is None:
            found.append(("no-best", f"{at}: every rate diverged or failed"))
        elif best.edge is not None:
            text = f"the best rate is at the grid's edge ({best.edge}); its gap is a lower bound"
            found.append(("edge", f"{at}: {text}, and the exponents leave it out"))
        if best is not None and not math.isfinite(cell.loss):
            found.append(("no-gap", f"{at}: the run at the law's rate diverged or failed"))
    if len(study.tune.seeds) == 1:
        found.append(("one-seed", "one seed for each rate"))
    return [{"name": name, "text": text} for name, text in found]


def failures(cells: Sequence[Cell]) -> list[str]:
    """A line for each run that failed."""
    return failure_lines(record for cell in cells for record in cell.search.records)


KIND = Kind("transfer", TransferStudy, transfer, document, failures, parts)
