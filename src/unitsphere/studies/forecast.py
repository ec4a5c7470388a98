"""What a study would train, from its file: runs, operations, hours and disk; nothing is trained.

Runs are counted as the study begins: a grid of rates that grows while its best lies at an edge
adds some, a rule that stops trials early takes time off.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch

from unitsphere.report.table import short
from unitsphere.studies.ablate import AblationStudy, ablation_findings, tokens_of
from unitsphere.studies.compare import CompareStudy, check_budgets, decided
from unitsphere.studies.core.execute import is_settled
from unitsphere.studies.core.fairness import check_fair
from unitsphere.studies.core.local import available_slots
from unitsphere.studies.core.plan import DEFAULTS, steps_for, with_overrides
from unitsphere.studies.core.rates import arm_config, at_budget
from unitsphere.studies.core.results import RUNS
from unitsphere.studies.core.space import grid_points, random_point
from unitsphere.studies.core.spec import Study
from unitsphere.studies.ladder import (
    LadderStudy,
    check_lengths,
    ladder_findings,
    rung_of,
    tokens_for,
)
from unitsphere.studies.ramp import RampStudy, ramp_findings
from unitsphere.studies.sweep import SweepStudy, check_keys, point_config
from unitsphere.training.config import RunConfig
from unitsphere.training.cost import Cost, Speed, cost, planned_device, speed
from unitsphere.training.folder import CONFIG
from unitsphere.training.resolve import resolve


@dataclass(frozen=True)
class Part:
    """Runs of a study that cost the same."""

    name: str
    runs: int
    config: RunConfig
    growth: int = 0
    """runs that may come on top, while the best rate lies at an edge of its grid"""


@singledispatch
def parts(study: Study) -> list[Part]:
    """What a study trains. Raises UserError for a mistake in it, as training it would."""
    raise NotImplementedError(type(study).__name__)


@parts.register
def _(study: CompareStudy) -> list[Part]:
    configs = {arm: decided(study, arm) for arm in study.arms}
    check_fair(configs, study.reference, study.allow)
    check_budgets(study, configs)
    tuned = tuning(study, study.tune.budgets or study.budgets, study.arms)
    return tuned + [
        Part(f"{arm} {short(tokens)}", len(study.seeds), at_budget(study, arm, tokens))
        for tokens in study.budgets
        for arm in study.arms
    ]


@parts.register
def _(study: AblationStudy) -> list[Part]:
    ablation_findings(study)
    table = study.paper_table
    rows = {"shared": [table.tuned_on], "each": [row.name for row in table.rows], "given": []}
    tuned = tuning(study, [study.tokens], rows[study.rates])
    return tuned + [
        Part(row.name, len(study.seeds), at_budget(study, row.name, tokens_of(study, row)))
        for row in table.rows
    ]


@parts.register
def _(study: SweepStudy) -> list[Part]:
    check_keys(study)
    found = []
    for arm in study.arms:
        usual = point_config(study, arm, {})
        if study.method == "grid":
            points = grid_points(study.space)
        elif study.method == "random":
            numbers = range(study.trials or 0)
            points = [random_point(study.space, study.search_seed, number) for number in numbers]
        else:  # known only as they are found
            points = [{}] * (study.trials or 0)
        trials = [point_config(study, arm, point) for point in points]
        runs = {f"{arm} trial {n}": (len(study.tune.seeds), one) for n, one in enumerate(trials)}
        runs[f"{arm} as is, and best"] = 2 * len(study.seeds), usual
        for name, (count, config) in runs.items():
            steps = {"train.steps": steps_for(study.tokens, config.train.batch_tokens)}
            found.append(Part(name, count, resolve(with_overrides(config, steps), None)))
    return found


@parts.register
def _(study: RampStudy) -> list[Part]:
    ramp_findings(study)
    steps = {"train.steps": study.steps}
    configs = {arm: with_overrides(arm_config(study, arm), steps) for arm in study.arms}
    return [Part(arm, len(study.seeds), resolve(configs[arm], None)) for arm in study.arms]


@parts.register
def _(study: LadderStudy) -> list[Part]:
    rungs = [rung_of(study, arm, size) for arm in study.arms for size in study.sizes]
    ladder_findings(study, rungs)
    check_lengths(study, rungs)
    found = []
    for rung in rungs:
        for batch in study.batches:
            name = f"{rung.arm} {rung.size} {batch}"
            one = study.study({"arm": study.rung(rung.arm, rung.size, batch)})
            config = at_budget(one, "arm", rung.tokens)
            found.append(searched(study, name, config))
        middle = sorted(study.batches)[len(study.batches) // 2]  # the best is not known yet
        one = study.study({"arm": study.rung(rung.arm, rung.size, middle)})
        for compute in study.computes:
            config = at_budget(one, "arm", tokens_for(compute, rung))
            found.append(Part(f"{rung.arm} {rung.size} {compute:g}", len(study.seeds), config))
    return found


def tuning(study: Study, budgets: Iterable[int], arms: Iterable[str]) -> list[Part]:
    """The runs that tune the rates of some arms at some budgets; none where rates are given."""
    if study.tune.points == 1:
        return []
    return [
        searched(study, f"{arm} {short(tokens)} tune", at_budget(study, arm, tokens))
        for tokens in budgets
        for arm in arms
    ]


def searched(study: Study, name: str, config: RunConfig) -> Part:
    """The runs of one search of a rate."""
    seeds = len(study.tune.seeds)
    return Part(name, study.tune.points * seeds, config, study.tune.growths * seeds)


def forecast_study(study: Study, out: Path) -> dict[str, Any]:
    """What training the study in the folder `out` would cost, as one document.

    hours: on as many workers as it would have here, one thread each. finished: runs that `out`
    holds already; all other figures count them too.
    """
    found = [(part, cost(as_run(study, part.config))) for part in parts(study)]
    total = sum(part.runs for part, _ in found)
    cluster = study.run.executor == "slurm"
    workers = min(study.run.workers or (total if cluster else available_slots()), total)
    rates: dict[object, Speed] = {}
    rows = []
    for part, one in found:
        model = part.config.model
        size = (part.config.architecture, model.d_model, model.n_layers, part.config.data.context)
        if size not in rates:
            with single_thread():
                rates[size] = speed(part.config, planned_device(part.config, 1))
        rows.append(row(part, one, rates[size]))
    return {
        "runs": total,
        "may_grow_by": sum(part.growth for part, _ in found),
        "finished": sum(is_settled(path.parent) for path in (out / RUNS).rglob(CONFIG)),
        **{key: sum(one[key] for one in rows) for key in ("tokens", "flops", "disk")},
        "workers": workers,
        "hours": sum(one["hours"] for one in rows) / workers,
        "throughput": next(iter(rates.values())).how,
        "parts": rows,
    }


def row(part: Part, one: Cost, at: Speed) -> dict[str, Any]:
    """A part's figures, over all of its runs; hours on one worker."""
    return {
        "name": part.name,
        "runs": part.runs,
        "parameters": one.parameters,
        "tokens": part.runs * one.tokens,
        "flops": part.runs * one.flops,
        "hours": part.runs * one.hours(at),
        "disk": part.runs * one.disk,
    }


def as_run(study: Study, config: RunConfig) -> RunConfig:
    """The config with what a study sets in every run unless it is told otherwise."""
    return with_overrides(config, {k: v for k, v in DEFAULTS.items() if k not in study.set})


@contextmanager
def single_thread() -> Iterator[None]:
    """Within: torch has one thread, as each run of a study does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
