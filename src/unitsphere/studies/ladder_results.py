"""What a ladder's runs say: laws of each arm, tests between arms, suggestions, as one document."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unitsphere.studies.core.execute import Executor, Record, failure_lines
from unitsphere.studies.core.fairness import Finding, version_flags
from unitsphere.studies.core.kind import Kind, provenance
from unitsphere.studies.core.statistics import PowerLaw
from unitsphere.studies.core.tune import mean_loss
from unitsphere.studies.ladder import LadderStudy, Rung, Spent, ladder, ladder_findings, parts
from unitsphere.studies.laws import (
    Allocation,
    LadderSize,
    Laws,
    Optimum,
    allocation,
    fit_laws,
    flops,
    suggest,
    z_tests,
)


@dataclass(frozen=True)
class Findings:
    """The results of a ladder: its runs, and by arm the best sizes at the computes and the laws."""

    study: LadderStudy
    rungs: Sequence[Rung]
    spent: Sequence[Spent]
    allocations: dict[str, list[Allocation]]
    laws: dict[str, Laws]

    @property
    def records(self) -> list[Record]:
        """All runs."""
        tried = [record for rung in self.rungs for record in grid_records(rung)]
        return [*tried, *(record for spent in self.spent for record in spent.records)]

    def of(self, arm: str) -> list[Rung]:
        """An arm's sizes."""
        return [rung for rung in self.rungs if rung.arm == arm]


def grid_records(rung: Rung) -> list[Record]:
    """The runs of a size's grid."""
    return [record for search in rung.searches.values() for record in search.records]


def findings(study: LadderStudy, rungs: Sequence[Rung], spent: Sequence[Spent]) -> Findings:
    """Fit the laws to the runs."""
    best = {arm: allocations([s for s in spent if s.rung.arm == arm]) for arm in study.arms}
    laws = {
        arm: fit_laws(sizes([rung for rung in rungs if rung.arm == arm]), best[arm])
        for arm in study.arms
    }
    return Findings(study, rungs, spent, best, laws)


def document(found: Findings) -> dict[str, Any]:
    """Everything that was found; every null has its reason among the flags."""
    study = found.study
    flags = [
        *ladder_findings(study, found.rungs),
        *version_flags(found.records),
        *grid_flags(study, found.rungs),
        *law_flags(study, found.laws),
        *spent_flags(found.spent, found.allocations),
    ]
    return {
        "tokens_per_parameter": study.tokens_per_parameter,
        "computes": sorted(study.computes),
        "arms": {arm: arm_figures(found, arm) for arm in study.arms},
        "tests": test_figures(found.laws),
        "flags": [dataclasses.asdict(flag) for flag in flags],
        "provenance": provenance(found.records),
    }


def arm_figures(found: Findings, arm: str) -> dict[str, Any]:
    """An arm's optima, its runs at the computes, its laws, and what they suggest."""
    ahead = found.study.next or [2 * max(rung.parameters for rung in found.of(arm))]
    suggested = [suggest(found.laws[arm], parameters) for parameters in ahead]
    return {
        "recipe": found.study.arms[arm].recipe,
        "sizes": [size_figures(rung) for rung in found.of(arm)],
        "computes": [spent_figures(s) for s in found.spent if s.rung.arm == arm],
        "allocations": [dataclasses.asdict(best) for best in found.allocations[arm]],
        "laws": law_figures(found.laws[arm]),
        "suggestions": [dataclasses.asdict(each) for each in suggested if each is not None],
    }


def sizes(rungs: Sequence[Rung]) -> list[LadderSize]:
    """Those that have an optimum."""
    return [LadderSize(r.parameters, r.tokens, r.optimum) for r in rungs if r.optimum is not None]


def allocations(spent: Sequence[Spent]) -> list[Allocation]:
    """The best size at each compute, of the mean losses over the seeds."""
    found = []
    for compute in sorted({s.compute for s in spent}):
        at = [s for s in spent if s.compute == compute]
        losses = [mean_loss(s.records) for s in at]
        if any(map(math.isfinite, losses)):
            found.append(allocation(compute, [s.rung.parameters for s in at], losses))
    return found


def size_figures(rung: Rung) -> dict[str, Any]:
    """A size's optimum, and the grid that it was found on."""
    best = rung.optimum
    return {
        "size": rung.size,
        "parameters": rung.parameters,
        "tokens": rung.tokens,
        "compute": flops(rung.parameters, rung.tokens),
        "batch": best and best.batch,
        "lr": best and best.lr,
        "loss": best and best.loss,
        "batch_edge": best and best.batch_edge,
        "lr_edge": best and best.lr_edge,
        "batches": [batch_figures(rung, batch, best) for batch in rung.searches],
    }


def batch_figures(rung: Rung, batch: int, best: Optimum | None) -> dict[str, Any]:
    """A batch's best rate, and all that were tried; the loss of one that diverged is null."""
    found = best.by_batch.get(batch) if best is not None else None
    losses = rung.searches[batch].losses()
    return {
        "batch": batch,
        "lr": found and found.at,
        "loss": found and found.value,
        "edge": found and found.edge,
        "rates": [
            {"lr": lr, "loss": losses[lr] if math.isfinite(losses[lr]) else None}
            for lr in sorted(losses)
        ],
    }


def spent_figures(spent: Spent) -> dict[str, Any]:
    """A size's runs at a compute."""
    loss = mean_loss(spent.records)
    return {
        "compute": spent.compute,
        "size": spent.rung.size,
        "parameters": spent.rung.parameters,
        "batch": spent.batch,
        "lr": spent.lr,
        "loss": loss if math.isfinite(loss) else None,
        "runs": [
            {
                "seed": record.planned.seed,
                "tokens": record.planned.tokens,
                "status": record.status,
                "loss": record.loss,
                "error": record.error,
            }
            for record in spent.records
        ],
    }


def law_figures(laws: Laws) -> dict[str, Any]:
    """Each law's coefficient and exponent with their 95% intervals, null where there is no law."""
    return {
        name: law
        and {
            "coefficient": law.coefficient,
            "coefficient_interval": law.interval(1.0),
            "exponent": law.exponent,
            "exponent_interval": law.exponent_interval,
            "exponent_variance": law.exponent_variance,
            "points": law.points,
        }
        for name, law in vars(laws).items()
    }


def test_figures(laws: dict[str, Laws]) -> list[dict[str, Any]]:
    """The Z-tests of each further arm's exponents against the first's."""
    first, *others = laws
    return [
        {"arms": [first, other], "law": name, **dataclasses.asdict(test)}
        for other in others
        for name, test in z_tests(laws[first], laws[other]).items()
        if test is not None
    ]


FEW_POINTS = 10
"""Points from which on a Z-test may take its variances to be known."""


def grid_flags(study: LadderStudy, rungs: Sequence[Rung]) -> list[Finding]:
    """Of the sizes' optima."""
    found = []
    for rung in rungs:
        name, best = f"{rung.arm} {rung.size}", rung.optimum
        if best is None:
            found.append(Finding("no-optimum", f"{name}: every run of the grid diverged or failed"))
            continue
        if best.batch_edge:
            text = f"{name}: the best batch is at the grid's edge ({best.batch_edge})"
            found.append(Finding("edge", f"{text}; the laws leave this size out: extend `batches`"))
        if best.lr_edge:
            text = f"{name}: the best rate is at the grid's edge ({best.lr_edge})"
            more = "raise tune.growths, or lower tune.ratio if higher rates diverged"
            found.append(Finding("edge", f"{text}; the laws leave this size out: {more}"))
        failed = [record for record in grid_records(rung) if record.status == "failed"]
        if failed:
            text = f"{name}: {len(failed)} run(s) of the grid failed: {failed[0].error}"
            found.append(Finding("failed", text))
    if len(study.tune.seeds) == 1:
        found.append(Finding("one-seed", "one seed for each point of the grid, as in the paper"))
    return found


def law_flags(study: LadderStudy, laws: dict[str, Laws]) -> list[Finding]:
    """Of the fits."""
    found = []
    for arm, fitted in laws.items():
        points = 0 if fitted.lr is None else fitted.lr.points
        if points < 3:
            text = "no law" if not points else "two sizes, which any law fits: no interval"
            found.append(Finding("few-sizes", f"{arm}: rate and batch have {text}"))
        if study.computes and (fitted.parameters is None or fitted.parameters.points < 3):
            text = f"{arm}: fewer than 3 computes whose best size lies between the sizes"
            found.append(Finding("few-computes", text))
    if not study.computes:
        text = "the loss is the one of the sizes' optima on the tuning split; `computes` gives more"
        found.append(Finding("no-computes", text))
    elif len(study.seeds) == 1:
        found.append(Finding("one-seed", "one seed for each run at a compute"))
    if len(laws) > 1 and any(law.points < FEW_POINTS for law in fits(laws)):
        text = f"from fewer than {FEW_POINTS} points a Z-test's p is too small"
        found.append(Finding("few-points", text))
    return found


def fits(laws: dict[str, Laws]) -> list[PowerLaw]:
    """The laws that there are, of all arms."""
    return [law for fitted in laws.values() for law in vars(fitted).values() if law is not None]


def spent_flags(spent: Sequence[Spent], best: dict[str, list[Allocation]]) -> list[Finding]:
    """Of the runs at the computes."""
    found = []
    for arm, each in best.items():
        for at in each:
            if at.edge is not None:
                text = f"{arm} at {at.compute:g}: the best size is the last tried ({at.edge})"
                found.append(Finding("edge", f"{text}; the laws leave this compute out"))
    for s in spent:
        for record in s.records:
            if record.status != "finished":
                place = f"{s.rung.arm} {s.rung.size} at {s.compute:g}, seed {record.planned.seed}"
                found.append(Finding(record.status, f"{place}: {record.error}"))
    return found


def train(study: LadderStudy, out: Path, executor: Executor | None = None) -> Findings:
    """Train what is missing of the study, and fit the laws."""
    return findings(study, *ladder(study, out, executor))


def failures(found: Findings) -> list[str]:
    """A line for each run that failed."""
    return failure_lines(found.records)


KIND = Kind("ladder", LadderStudy, train, lambda study, found: document(found), failures, parts)
