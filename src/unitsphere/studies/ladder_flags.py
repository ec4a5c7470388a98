"""What a reader must know of a ladder's figures, each flag by its name."""

from collections.abc import Sequence
from dataclasses import fields

from unitsphere.studies.ladder import Rung, Spent
from unitsphere.studies.ladder_spec import LadderStudy
from unitsphere.studies.powerlaw import PowerLaw
from unitsphere.studies.scaling import Allocation, Laws

FEW_POINTS = 10
"""Points from which on a Z-test may take its variances to be known."""

Flag = dict[str, str]


def flag(name: str, text: str) -> Flag:
    """What a reader must know of the figures."""
    return {"name": name, "text": text}


def grid_flags(study: LadderStudy, rungs: Sequence[Rung]) -> list[Flag]:
    """Of the sizes' optima."""
    found = []
    for rung in rungs:
        name, best = f"{rung.arm} {rung.size}", rung.optimum
        if best is None:
            found.append(flag("no-optimum", f"{name}: every run of the grid diverged or failed"))
            continue
        if best.batch_edge:
            text = f"{name}: the best batch is at the grid's edge ({best.batch_edge})"
            found.append(flag("edge", f"{text}; the laws leave this size out: extend `batches`"))
        if best.lr_edge:
            text = f"{name}: the best rate is at the grid's edge ({best.lr_edge})"
            more = "raise tune.growths, or lower tune.ratio if higher rates diverged"
            found.append(flag("edge", f"{text}; the laws leave this size out: {more}"))
        failed = [
            record
            for search in rung.searches.values()
            for records in search.found.values()
            for record in records
            if record.status == "failed"
        ]
        if failed:
            text = f"{name}: {len(failed)} run(s) of the grid failed: {failed[0].error}"
            found.append(flag("failed", text))
    if len(study.tune.seeds) == 1:
        found.append(flag("one-seed", "one seed for each point of the grid, as in the paper"))
    return found


def law_flags(study: LadderStudy, laws: dict[str, Laws]) -> list[Flag]:
    """Of the fits."""
    found = []
    for arm, fitted in laws.items():
        points = 0 if fitted.lr is None else fitted.lr.points
        if points < 3:
            text = "no law" if not points else "two sizes, which any law fits: no interval"
            found.append(flag("few-sizes", f"{arm}: rate and batch have {text}"))
        if study.computes and (fitted.parameters is None or fitted.parameters.points < 3):
            text = f"{arm}: fewer than 3 computes whose best size lies between the sizes"
            found.append(flag("few-computes", text))
    if not study.computes:
        text = "the loss is that of the sizes' optima on the tuning split; `computes` gives more"
        found.append(flag("no-computes", text))
    elif len(study.seeds) == 1:
        found.append(flag("one-seed", "one seed for each run at a compute"))
    if len(laws) > 1 and any(law.points < FEW_POINTS for law in fits(laws)):
        text = f"from fewer than {FEW_POINTS} points a Z-test's p is too small"
        found.append(flag("few-points", text))
    return found


def fits(laws: dict[str, Laws]) -> list[PowerLaw]:
    """The laws that there are, of all arms."""
    found = (getattr(fitted, field.name) for fitted in laws.values() for field in fields(Laws))
    return [law for law in found if law is not None]


def spent_flags(spent: Sequence[Spent], best: dict[str, list[Allocation]]) -> list[Flag]:
    """Of the runs at the computes."""
    found = []
    for arm, each in best.items():
        for at in each:
            if at.edge is not None:
                text = f"{arm} at {at.compute:g}: the best size is the last tried ({at.edge})"
                found.append(flag("edge", f"{text}; the laws leave this compute out"))
    for s in spent:
        for record in s.records:
            if record.status != "finished":
                place = f"{s.rung.arm} {s.rung.size} at {s.compute:g}, seed {record.planned.seed}"
                found.append(flag(record.status, f"{place}: {record.error}"))
    return found
