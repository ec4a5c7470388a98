"""`unitsphere compare`: arms × token budgets × seeds, and how much faster each arm is.

Each budget is a run of its own, annealed over exactly that budget. All arms see the same tokens,
and for a seed in the same order. Each arm's rate is tuned on documents that are not reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from unitsphere.errors import UserError
from unitsphere.studies.arms import Tuned, at_budget, final_run, to_come, tuned_rates
from unitsphere.studies.comparison import document
from unitsphere.studies.execute import Executor, Record, execute, executor_of
from unitsphere.studies.fairness import check_fair
from unitsphere.studies.folder import study_folder
from unitsphere.studies.outcomes import Comparison
from unitsphere.studies.plan import steps_for
from unitsphere.studies.spec import Comparing, check_numbers
from unitsphere.training.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class CompareStudy(Comparing):
    """What `compare` asks beside what all studies do."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = (*Comparing.CHANGEABLE, "baseline:")

    budgets: list[int]
    """training tokens; each a run of its own"""
    baseline: str | None = None
    """the arm that the others are measured against; none: the first"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers("budgets", self.budgets, least=1)
        if len(self.arms) < 2:
            raise UserError("'arms' must name at least two arms to compare")
        if self.baseline is not None and self.baseline not in self.arms:
            raise UserError(
                f"'baseline' is no arm: {self.baseline!r} (arms: {', '.join(self.arms)})"
            )

    @property
    def reference(self) -> str:
        """The baseline's name."""
        return self.baseline or next(iter(self.arms))


def compare(study: CompareStudy, out: Path, executor: Executor | None = None) -> dict[str, object]:
    """Train what is missing of the study in the folder `out`; the figures as one document.

    Raises UserError for an unfair study (see studies.fairness), a mistake in it or unusable data,
    `Preempted` when stopped; the same call then goes on.
    """
    configs = {arm: decided(study, arm) for arm in study.arms}
    findings = check_fair(configs, study.reference, study.allow)
    check_budgets(study, configs)
    with study_folder(out, study):
        executor = executor or executor_of(study.run, out)
        budgets = sorted(study.budgets)
        later = [
            job
            for arm in study.arms
            for tokens in budgets
            for job in to_come(study, arm, tokens, len(study.seeds))
        ]
        rates = tuned_rates(out, study, budgets, executor, later)
        records = final_records(out, study, rates, executor)
    return document(
        Comparison(study.reference, sorted(study.budgets), study.seeds, configs, rates, records),
        {arm: spec.recipe for arm, spec in study.arms.items()},
        findings,
    )


def decided(study: CompareStudy, arm: str) -> RunConfig:
    """An arm's config at the smallest budget, everything decided."""
    return at_budget(study, arm, min(study.budgets))


def check_budgets(study: CompareStudy, configs: Mapping[str, RunConfig]) -> None:
    """Raise UserError for two budgets of the same number of steps."""
    for batch in {config.train.batch_tokens for config in configs.values()}:
        if len({steps_for(tokens, batch) for tokens in study.budgets}) < len(study.budgets):
            raise UserError(f"two of the budgets have the same number of steps of {batch} tokens")


def final_records(
    out: Path, study: CompareStudy, rates: Mapping[tuple[str, int], Tuned], executor: Executor
) -> dict[tuple[str, int, int], Record]:
    """What came of each reported run, by (arm, budget, seed); small budgets are run first.

    Seed by seed: what slows the machine for a while then falls on every arm's times.
    """
    runs = {
        (arm, tokens, seed): final_run(out, study, arm, tokens, lr, seed)
        for tokens in sorted(study.budgets)
        for seed in study.seeds
        for arm in study.arms
        if (lr := rates[arm, tokens].lr) is not None
    }
    return dict(zip(runs, execute(list(runs.values()), executor), strict=True))
