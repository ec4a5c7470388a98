"""`unitsphere compare`: arms × token budgets × seeds, and how much faster each arm is.

Each budget is a separate run, annealed over exactly that budget. All arms see the same tokens,
and for a seed in the same order. Each arm's rate is tuned on documents that are not reported.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import Executor, Record, execute, failure_lines
from unitsphere.studies.core.fairness import (
    REFUSALS,
    Finding,
    check_fair,
    run_flags,
    setting_flags,
)
from unitsphere.studies.core.kind import Kind, Part, provenance, study_folder, tuning
from unitsphere.studies.core.plan import Planned, at_budget, final_run, to_come
from unitsphere.studies.core.points import at_point, check_points, tuned_keys, tuned_points
from unitsphere.studies.core.spec import Comparing, Study, check_numbers
from unitsphere.studies.core.tune import Point, Tuned, tuned_rates
from unitsphere.studies.gains import Comparison, differences, rising, speedup_of
from unitsphere.training.config import RunConfig, steps_for
from unitsphere.training.forecast import ModelSize, size_of

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True, kw_only=True)
class CompareStudy(Comparing):
    """What `compare` asks in addition to all studies."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = (*Comparing.CHANGEABLE, "baseline:")
    TUNES_KEYS: ClassVar[bool] = True

    budgets: list[int]
    """training tokens; each is a separate run"""
    baseline: str | None = None
    """the arm that the others are measured against; none: the first"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers("budgets", self.budgets, least=1)
        if len(self.arms) < 2:
            raise UserError("'arms' must name at least two arms to compare")
        if self.baseline is not None and self.baseline not in self.arms:
            raise UserError(
                f"'baseline' is not an arm: {self.baseline!r} (arms: {', '.join(self.arms)})"
            )

    @property
    def reference(self) -> str:
        """The baseline's name."""
        return self.baseline or next(iter(self.arms))


def compare(study: CompareStudy, out: Path, executor: Executor | None = None) -> Comparison:
    """Train what is missing of the study in the folder `out`; the results of all runs.

    Raises UserError for an unfair study (see studies.core.fairness), a mistake in it or unusable
    data, `Preempted` when stopped; the same call then resumes.
    """
    configs = checked(study)
    budgets = sorted(study.budgets)
    with study_folder(out, study, executor) as executor:
        later = to_come(study, product(study.arms, budgets), len(study.seeds))
        tune = tuned_points if study.tune.keys else tuned_rates
        rates = tune(out, study, budgets, executor, later)
        records = final_records(out, study, budgets, rates, executor)
    configs = {arm: resolved(study, arm, rates[arm, budgets[0]].point) for arm in configs}
    return Comparison(study.reference, budgets, study.seeds, configs, rates, records)


def checked(study: CompareStudy) -> dict[str, RunConfig]:
    """Each arm's config, resolved; a UserError for a study that is unfair or mistaken."""
    configs = {arm: resolved(study, arm) for arm in study.arms}
    findings_of(study, configs)
    for arm, config in check_points(study, min(study.budgets)) if study.tune.keys else ():
        findings_of(study, {**configs, arm: config})
    check_budgets(study, configs)
    return configs


def findings_of(study: CompareStudy, configs: Mapping[str, RunConfig]) -> list[Finding]:
    """What is unfair and allowed; a UserError if it is not allowed."""
    tuned = {arm: tuned_keys(study, arm) for arm in configs}
    return check_fair(configs, study.reference, study.allow, tuned=tuned)


def resolved(study: CompareStudy, arm: str, point: Point | None = None) -> RunConfig:
    """An arm's config at the smallest budget, or at its best point there, resolved."""
    at = at_point(study, arm, point.keys) if point else study
    return at_budget(at, arm, min(study.budgets))


def check_budgets(study: CompareStudy, configs: Mapping[str, RunConfig]) -> None:
    """Raise UserError for two budgets of the same number of steps."""
    for batch in {config.train.batch_tokens for config in configs.values()}:
        if len({steps_for(tokens, batch) for tokens in study.budgets}) < len(study.budgets):
            raise UserError(f"two of the budgets have the same number of steps of {batch} tokens")


def final_records(
    out: Path,
    study: Study,
    budgets: Sequence[int],
    rates: Mapping[tuple[str, int], Tuned],
    executor: Executor,
) -> dict[tuple[str, int, int], Record]:
    """The result of each reported run, by (arm, budget, seed); small budgets are run first.

    Seed by seed: what slows the machine for a while then falls on every arm's times.
    """
    runs = {
        (arm, tokens, seed): reported_run(out, study, arm, tokens, rates[arm, tokens], seed)
        for tokens in sorted(budgets)
        for seed in study.seeds
        for arm in study.arms
        if rates[arm, tokens].lr is not None
    }
    return dict(zip(runs, execute(list(runs.values()), executor), strict=True))


def reported_run(out: Path, study: Study, arm: str, tokens: int, rate: Tuned, seed: int) -> Planned:
    """A run with an arm's tuned rate, or at its best point."""
    assert rate.lr is not None
    if rate.point is None:
        return final_run(out, study, arm, tokens, rate.lr, seed)
    at = at_point(study, arm, rate.point.keys)
    return final_run(out, at, arm, tokens, rate.lr, seed, rate.point.name)


def document(
    found: Comparison, recipes: Mapping[str, str], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Everything that was found; every null has its reason next to it or among the flags."""
    sizes = {arm: size_of(config) for arm, config in found.configs.items()}
    counts = {arm: size.parameters for arm, size in sizes.items()}
    flags = [
        *findings,
        *setting_flags(found.configs, counts, found.baseline),
        *rising(found),
        *run_flags(found.configs, found.budgets, found.seeds, found.rates, found.records),
    ]
    others = [arm for arm in found.configs if arm != found.baseline]
    return {
        "baseline": found.baseline,
        "budgets": list(found.budgets),
        "seeds": list(found.seeds),
        "arms": {arm: arm_figures(found, arm, recipes[arm], sizes[arm]) for arm in found.configs},
        "differences": differences(found, others),
        "speedups": [speedup_of(found, arm, sizes) for arm in others],
        "flags": [dataclasses.asdict(flag) for flag in flags],
        "provenance": provenance(found.records.values()),
    }


def arm_figures(found: Comparison, arm: str, recipe: str, size: ModelSize) -> dict[str, Any]:
    """One arm: what it is, and the results of it at each budget."""
    rate = found.rates[arm, found.budgets[-1]]
    return {
        "recipe": recipe,
        "architecture": found.configs[arm].architecture,
        **dataclasses.asdict(size),
        "lr": rate.lr,
        "budgets": [budget_figures(found, arm, budget) for budget in found.budgets],
    }


def budget_figures(found: Comparison, arm: str, budget: int) -> dict[str, Any]:
    """An arm at one budget: means over the seeds that finished, every seed, and its tuning."""
    records = {
        s: found.records[arm, budget, s] for s in found.seeds if (arm, budget, s) in found.records
    }
    done = [record for record in records.values() if record.status == "finished"]
    losses = [record.loss for record in done if record.loss is not None]
    bits = [record.bits_per_byte for record in done if record.bits_per_byte is not None]
    rate = found.rates[arm, budget]
    return {
        "budget": budget,
        "tokens": found.tokens(arm, budget),
        "steps": found.tokens(arm, budget) // found.config(arm, budget).train.batch_tokens,
        "lr": rate.lr,
        "loss": statistics.mean(losses) if losses else None,
        "standard_error": statistics.stdev(losses) / len(losses) ** 0.5
        if len(losses) > 1
        else None,
        "bits_per_byte": statistics.mean(bits) if bits else None,
        "seconds": statistics.mean(r.seconds for r in done if r.seconds) if done else None,
        "seeds": [seed_figures(seed, record) for seed, record in records.items()],
        "tuned": {
            "tokens": rate.tokens,
            "at_edge": rate.at_edge,
            "rates": [{"lr": lr, "loss": loss} for lr, loss in rate.rates.items()],
            **(point_figures(rate) if rate.trials else {}),
        },
    }


def point_figures(rate: Tuned) -> dict[str, Any]:
    """The search of several keys: how many points, the best of them, how flat it is, and all."""
    best = rate.point
    return {
        "tried": len(rate.trials),
        "best": best and {"params": best.params, "loss": best.loss, "at_edge": best.edges},
        "neighbours": best.neighbours if best else [],
        "trials": rate.trials,
    }


def seed_figures(seed: int, record: Record) -> dict[str, Any]:
    """One run."""
    return {
        "seed": seed,
        "status": record.status,
        "loss": record.loss,
        "bits_per_byte": record.bits_per_byte,
        "seconds": record.seconds,
        "tokens_per_second": record.tokens_per_second,
        "run": str(record.planned.folder),
        "error": record.error,
    }


def results(study: CompareStudy, found: Comparison) -> dict[str, Any]:
    """The figures of a study, with what of it is unfair and allowed.

    Values that were fair one by one may be unfair together at a best point. By now it is trained:
    that is flagged, since a refusal would lose every figure.
    """
    findings = findings_of(dataclasses.replace(study, allow=[*REFUSALS]), found.configs)
    figures = document(found, {arm: spec.recipe for arm, spec in study.arms.items()}, findings)
    return figures | ({"tuning": tuning_figures(study)} if study.tune.keys else {})


def tuning_figures(study: CompareStudy) -> dict[str, Any]:
    """What was tuned of each arm, and what it was given for it."""
    tune = study.tune
    return {
        "method": tune.method,
        "trials": tune.trials,
        "seeds": tune.seeds,
        "budgets": tune.budgets or study.budgets,
        "transfer": tune.transfer,
        "keys": tune.keys,
    }


def parts(study: CompareStudy) -> list[Part]:
    """What would be trained."""
    checked(study)
    tuned = tuning(study, study.tune.budgets or study.budgets, study.arms)
    return tuned + [
        Part(f"{arm} {short(tokens)}", len(study.seeds), at_budget(study, arm, tokens))
        for tokens in study.budgets
        for arm in study.arms
    ]


def failures(found: Comparison) -> list[str]:
    """A line for each reported run that failed, and each that was to tune a rate."""
    tuning = dict.fromkeys(error for rate in found.rates.values() for error in rate.errors)
    return [*tuning, *failure_lines(found.records.values())]


def shipped_studies() -> list[str]:
    """The names of the comparisons that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find_study(name: str, verb: str) -> tuple[Path, Path]:
    """The TOML file of a study, and the folder that it uses unless `--out` names another.

    That is runs/NAME for a file, runs/VERB-NAME for a study that comes with the package. Raises
    UserError for a name that is neither.
    """
    if name in shipped_studies():
        return SHIPPED / f"{name}.toml", Path("runs") / f"{verb}-{name}"
    if not name.endswith(".toml"):
        meant = did_you_mean(name, [*shipped_studies(), "league"])
        raise UserError(f"no study '{name}'{meant}, and not a .toml file")
    return Path(name), Path("runs") / Path(name).stem


KIND = Kind("compare", CompareStudy, compare, results, failures, parts)
