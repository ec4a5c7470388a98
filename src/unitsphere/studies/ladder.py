"""`unitsphere ladder`: sizes × batches × rates, annealed, and the scaling laws that follow.

After anGPT (arXiv 2505.22014), §5.1, §5.3, Appendices G and I:

1. Each size is trained on `tokens_per_parameter` tokens a parameter, at each batch and each rate of
   a grid that grows while its best rate is at an edge. Its optimum is interpolated (optima.py).
2. At each of `computes` every size is trained with its own best batch and rate, on the tokens that
   the compute leaves for it. The best size is interpolated (scaling.py).

The grid is judged on documents taken out of the training split, the computes on the validation
split.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.studies.arms import arm_config, arm_search, at_budget, final_run
from unitsphere.studies.execute import Executor, Record, execute, executor_of
from unitsphere.studies.fairness import Finding, check_fair
from unitsphere.studies.folder import study_folder
from unitsphere.studies.ladder_spec import LadderStudy
from unitsphere.studies.optima import Optimum, Trial, optimum
from unitsphere.studies.outcomes import size_of
from unitsphere.studies.plan import Planned, steps_for
from unitsphere.studies.scaling import flops
from unitsphere.studies.tune import Search, rounded, search
from unitsphere.training.resolve import resolve

LEAST_STEPS = 10
"""A run of fewer has no schedule to speak of."""


@dataclass(frozen=True)
class Rung:
    """An arm at a size: parameters, tokens of the grid's runs, the grid, and its optimum.

    searches: batch -> what came of its rates. optimum: None if every run diverged or failed.
    """

    arm: str
    size: str
    parameters: int
    tokens: int
    context: int
    searches: dict[int, Search]
    optimum: Optimum | None = None


@dataclass(frozen=True)
class Spent:
    """A rung trained at a compute: batch, rate, and a run a seed."""

    rung: Rung
    compute: float
    batch: int
    lr: float
    records: Sequence[Record]

    @property
    def losses(self) -> list[float]:
        """Of the seeds that finished."""
        return [record.loss for record in self.records if record.loss is not None]


def ladder(
    study: LadderStudy, out: Path, executor: Executor | None = None
) -> tuple[list[Rung], list[Spent]]:
    """Train what is missing of the study in the folder `out`; what came of the grid and computes.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then goes on.
    """
    rungs = [rung_of(study, arm, size) for arm in study.arms for size in study.sizes]
    ladder_findings(study, rungs)
    check_lengths(study, rungs)
    with study_folder(out, study):
        executor = executor or executor_of(study.run, out)
        rungs = [climbed(study, out, rung) for rung in rungs]
        searches = [found for rung in rungs for found in rung.searches.values()]
        search(searches, executor, study.tune.ratio, study.tune.growths)
        rungs = [with_optimum(rung) for rung in rungs]
        spent = spend(study, out, rungs, executor)
    return rungs, spent


def ladder_findings(study: LadderStudy, rungs: Sequence[Rung]) -> list[Finding]:
    """What is unfair of the study and allowed; a UserError if it is not allowed.

    All sizes of all arms must be alike, as a law goes through an arm's; batches are the grid's. Of
    each the shortest run.
    """
    configs = {}
    for rung in rungs:
        name = f"{rung.arm}.{rung.size}"
        one = study.study({name: study.rung(rung.arm, rung.size, max(study.batches))})
        shortest = min([rung.tokens, *(tokens_for(compute, rung) for compute in study.computes)])
        configs[name] = at_budget(one, name, shortest)
    return check_fair(configs, next(iter(configs)), study.allow)


def rung_of(study: LadderStudy, arm: str, size: str) -> Rung:
    """An arm at a size, before anything is trained; UserError for a mistake in its keys."""
    specs = {str(batch): study.rung(arm, size, batch) for batch in study.batches}
    configs = [resolve(arm_config(study.study(specs), name), None) for name in specs]
    parameters = size_of(configs[0]).parameters
    tokens = round(study.tokens_per_parameter * parameters)
    return Rung(arm, size, parameters, tokens, configs[0].data.context, {})


def check_lengths(study: LadderStudy, rungs: Sequence[Rung]) -> None:
    """Raise UserError for runs of too few steps."""
    largest = max(study.batches)
    for rung in rungs:
        lengths = {"tokens_per_parameter": rung.tokens}
        for compute in study.computes:
            lengths[f"the compute {compute:g}"] = tokens_for(compute, rung)
        for name, tokens in lengths.items():
            if steps_for(tokens, largest) < LEAST_STEPS:
                raise UserError(
                    f"{name} leaves {rung.arm} {rung.size} ({rung.parameters:,} parameters) "
                    f"{tokens:,} tokens: fewer than {LEAST_STEPS} steps of {largest}"
                )


def tokens_for(compute: float, rung: Rung) -> int:
    """Tokens that a compute leaves for a size."""
    return round(compute / flops(rung.parameters, 1))


def climbed(study: LadderStudy, out: Path, rung: Rung) -> Rung:
    """The rung with the searches of its rates, one a batch, nothing of which is trained yet."""
    searches = {}
    for batch in sorted(study.batches):
        name = f"{rung.arm}.{rung.size}.{batch}"
        arms = {name: study.rung(rung.arm, rung.size, batch)}
        searches[batch] = arm_search(out, study.study(arms), name, rung.tokens)
    return replace(rung, searches=searches)


def with_optimum(rung: Rung) -> Rung:
    """The rung with the optimum of its grid."""
    trials = [
        Trial(batch, lr, loss)
        for batch, found in rung.searches.items()
        for lr, loss in found.losses().items()
    ]
    known = optimum(trials) if any(math.isfinite(trial.loss) for trial in trials) else None
    return replace(rung, optimum=known)


def spend(study: LadderStudy, out: Path, rungs: Sequence[Rung], executor: Executor) -> list[Spent]:
    """Train every size that has an optimum at every compute; small computes are run first."""
    planned = [
        spent_runs(study, out, rung, rung.optimum, compute)
        for compute in sorted(study.computes)
        for rung in rungs
        if rung.optimum is not None
    ]
    records = iter(execute([run for _, runs in planned for run in runs], executor))
    return [replace(at, records=[next(records) for _ in runs]) for at, runs in planned]


def spent_runs(
    study: LadderStudy, out: Path, rung: Rung, best: Optimum, compute: float
) -> tuple[Spent, list[Planned]]:
    """A size at a compute with its best rate and, in whole sequences, its best batch."""
    batch, lr = max(round(best.batch / rung.context), 1) * rung.context, rounded(best.lr)
    name = f"{rung.arm}.{rung.size}.{batch}"
    arms = study.study({name: study.rung(rung.arm, rung.size, batch)})
    tokens = tokens_for(compute, rung)
    runs = [final_run(out, arms, name, tokens, lr, seed) for seed in study.seeds]
    return Spent(rung, compute, batch, lr, []), runs
