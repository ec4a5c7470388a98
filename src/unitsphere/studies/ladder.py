"""What a ladder asks, from its TOML: the keys of all studies, and sizes, batches and computes.

tokens_per_parameter = 20
batches = [8192, 16384, 32768]           # tokens an update
computes = [1e15, 2e15, 4e15]            # operations; none: only the grid
[sizes]
s = { model = { d_model = 128, n_layers = 4, n_heads = 2 } }
m = { model = { d_model = 192, n_layers = 6, n_heads = 3 } }
[arms]
gpt-plus = "quickstart/gpt-plus"
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unitsphere.config import flatten
from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Executor, Record, execute
from unitsphere.studies.core.fairness import Finding, check_fair
from unitsphere.studies.core.kind import Part, searched, study_folder
from unitsphere.studies.core.plan import Planned, arm_config, at_budget, final_run
from unitsphere.studies.core.spec import OWN_KEYS, ArmSpec, Comparing, Study, check_numbers
from unitsphere.studies.core.tune import Search, arm_search, rounded, search
from unitsphere.studies.laws import Optimum, flops, optimum
from unitsphere.training.forecast import size_of
from unitsphere.training.resolve import resolve

LEAST_POINTS = 3
"""The least batches, and rates of each, for an optimum between them."""
MOST = 1e30
"""The most tokens per parameter and operations: more than was ever trained, and no overflow."""


@dataclass(frozen=True, kw_only=True)
class LadderStudy(Comparing):
    """What `ladder` asks in addition to all studies. `tune` is of the grid, `seeds` of computes."""

    sizes: dict[str, dict[str, object]]
    """keys set at each size, such as model.d_model"""
    batches: list[int]
    """tokens an update"""
    tokens_per_parameter: float = 20.0
    """training tokens of the grid's runs, divided by the parameters"""
    computes: list[float] = field(default_factory=list)
    """operations (6·parameters·tokens) at which all sizes are trained; none: only the grid"""
    next: list[int] = field(default_factory=list)
    """parameters of sizes to suggest rate and batch for; none: twice the largest"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers("batches", self.batches, least=1)
        if len(self.batches) < LEAST_POINTS or self.tune.points < LEAST_POINTS:
            raise UserError(
                f"'batches' and tune.points must be at least {LEAST_POINTS}: the best is "
                "searched for between them"
            )
        if self.tune.budgets:
            raise UserError("tune.budgets is not for a ladder: leave it out")
        if not self.sizes:
            raise UserError("'sizes' must name at least one size")
        if not all(0 < number <= MOST for number in (self.tokens_per_parameter, *self.computes)):
            raise UserError(
                f"'tokens_per_parameter' and 'computes' must be above 0 and at most {MOST:g}"
            )
        if len(set(self.computes)) < len(self.computes):
            raise UserError(f"'computes' must be different numbers, not {self.computes}")
        if self.next:
            check_numbers("next", self.next, least=1)
        for name, keys in self.sizes.items():
            if not re.fullmatch(r"\w[\w+-]*", name, re.ASCII):
                raise UserError(
                    f"the size {name!r} must have a name of letters, digits, '-' or '_'"
                )
            check_keys(f"sizes.{name}", flatten(keys))
        check_keys("set", self.set)
        for name, arm in self.arms.items():
            check_keys(f"arms.{name}.set", arm.set)

    def rung(self, arm: str, size: str, batch: int) -> ArmSpec:
        """An arm at a size and batch."""
        spec = self.arms[arm]
        keys = {**spec.set, **flatten(self.sizes[size]), "train.batch_tokens": batch}
        return ArmSpec(spec.recipe, keys, spec.lr)

    def study(self, arms: dict[str, ArmSpec]) -> Study:
        """The study of `arms` with everything else that is this one's."""
        return Study(arms=arms, set=self.set, seeds=self.seeds, tune=self.tune, run=self.run)


def check_keys(where: str, keys: dict[str, object]) -> None:
    """Raise UserError for a key that the study itself sets."""
    own = OWN_KEYS | {"train.batch_tokens": "it belongs in `batches`"}
    for key in keys:
        if key in own:
            raise UserError(f"'{where}.{key}' cannot be set: {own[key]}")


LEAST_STEPS = 10
"""A run of fewer has no schedule to speak of."""


@dataclass(frozen=True)
class Rung:
    """An arm at a size: parameters, tokens of the grid's runs, the grid, and its optimum.

    searches: batch -> the results of its rates. optimum: None if every run diverged or failed.
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
    """A rung trained at a compute: batch, rate, and a run per seed."""

    rung: Rung
    compute: float
    batch: int
    lr: float
    records: Sequence[Record]


def ladder(
    study: LadderStudy, out: Path, executor: Executor | None = None
) -> tuple[list[Rung], list[Spent]]:
    """Train what is missing in the folder `out`; the results of the grid and of the computes.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then resumes.
    """
    rungs = checked(study)
    with study_folder(out, study, executor) as executor:
        rungs = [climbed(study, out, rung) for rung in rungs]
        searches = [found for rung in rungs for found in rung.searches.values()]
        search(searches, executor, study.tune.ratio, study.tune.growths)
        rungs = [with_optimum(rung) for rung in rungs]
        spent = spend(study, out, rungs, executor)
    return rungs, spent


def checked(study: LadderStudy) -> list[Rung]:
    """Every arm at every size, before anything is trained; a UserError for a mistaken study."""
    rungs = [rung_of(study, arm, size) for arm in study.arms for size in study.sizes]
    check_lengths(study, rungs)
    check_different(rungs)
    ladder_findings(study, rungs)
    return rungs


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
    specs = {f"{arm}.{size}.{batch}": study.rung(arm, size, batch) for batch in study.batches}
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
            if round(tokens / largest) < LEAST_STEPS:
                raise UserError(
                    f"{name} leaves {rung.arm} {rung.size} ({rung.parameters:,} parameters) "
                    f"{tokens:,} tokens: fewer than {LEAST_STEPS} steps of {largest}"
                )


def check_different(rungs: Sequence[Rung]) -> None:
    """Raise UserError for two sizes with as many parameters: all laws are over these."""
    seen: dict[tuple[str, int], str] = {}
    for rung in rungs:
        other = seen.setdefault((rung.arm, rung.parameters), rung.size)
        if other != rung.size:
            raise UserError(
                f"the sizes {other} and {rung.size} of {rung.arm} have {rung.parameters:,} "
                "parameters both, and laws go over these: leave one out"
            )


def tokens_for(compute: float, rung: Rung) -> int:
    """Tokens that a compute leaves for a size."""
    return round(compute / flops(rung.parameters, 1))


def climbed(study: LadderStudy, out: Path, rung: Rung) -> Rung:
    """The rung with the searches of its rates, one per batch, nothing of which is trained yet."""
    searches = {}
    for batch in sorted(study.batches):
        name = f"{rung.arm}.{rung.size}.{batch}"
        arms = {name: study.rung(rung.arm, rung.size, batch)}
        searches[batch] = arm_search(out, study.study(arms), name, rung.tokens)
    return replace(rung, searches=searches)


def with_optimum(rung: Rung) -> Rung:
    """The rung with the optimum of its grid."""
    grid: dict[float, dict[float, float]] = {b: s.losses() for b, s in rung.searches.items()}
    known = any(math.isfinite(loss) for row in grid.values() for loss in row.values())
    return replace(rung, optimum=optimum(grid) if known else None)


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


def parts(study: LadderStudy) -> list[Part]:
    """What would be trained; the middle batch stands for the best, which is not known yet."""
    found = []
    for rung in checked(study):
        for batch in study.batches:
            name = f"{rung.arm} {rung.size} {batch}"
            one = study.study({"arm": study.rung(rung.arm, rung.size, batch)})
            config = at_budget(one, "arm", rung.tokens)
            found.append(searched(study, name, config))
        middle = sorted(study.batches)[len(study.batches) // 2]
        one = study.study({"arm": study.rung(rung.arm, rung.size, middle)})
        for compute in study.computes:
            config = at_budget(one, "arm", tokens_for(compute, rung))
            found.append(Part(f"{rung.arm} {rung.size} {compute:g}", len(study.seeds), config))
    return found
