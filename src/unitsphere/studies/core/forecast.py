"""What a study would train, from its file: runs, operations, hours and disk. Nothing is trained.

Runs are counted as the study starts: a grid of rates that grows while its best lies at an edge adds
some, and a rule that stops trials early saves time.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import is_settled
from unitsphere.studies.core.local import available_slots
from unitsphere.studies.core.plan import DEFAULTS, with_overrides
from unitsphere.studies.core.rates import at_budget
from unitsphere.studies.core.results import RUNS
from unitsphere.studies.core.spec import Study
from unitsphere.training.config import RunConfig
from unitsphere.training.cost import Cost, Speed, cost, planned_device, speed
from unitsphere.training.folder import CONFIG


@dataclass(frozen=True)
class Part:
    """Runs of a study that cost the same."""

    name: str
    runs: int
    config: RunConfig
    growth: int = 0
    """runs that may be added while the best rate lies at an edge of its grid"""


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


def forecast_study(study: Study, parts: Iterable[Part], out: Path) -> dict[str, Any]:
    """What training the `parts` of a study in the folder `out` would cost, as one document.

    hours: on as many workers as it would have here, with one thread each. finished: runs that `out`
    holds already; all other figures count them too.
    """
    found = [(part, cost(as_run(study, part.config))) for part in parts]
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
    """A part's figures over all of its runs; hours on one worker."""
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
    """The config with what a study sets in every run unless its file says otherwise."""
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
