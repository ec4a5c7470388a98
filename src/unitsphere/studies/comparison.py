"""The figures of a comparison as one document: arms, differences, speedups, flags, provenance."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from unitsphere.studies.execute import Record
from unitsphere.studies.fairness import Finding, setting_flags
from unitsphere.studies.gains import differences, rising, speedup_of
from unitsphere.studies.outcomes import Comparison, Size, size_of
from unitsphere.studies.provenance import provenance
from unitsphere.studies.run_flags import run_flags, runs_commit


def document(
    found: Comparison, recipes: Mapping[str, str], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Everything that was found; every null has its reason beside it or among the flags."""
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
        "provenance": provenance() | {"runs_commit": runs_commit(found.records.values())},
    }


def arm_figures(found: Comparison, arm: str, recipe: str, size: Size) -> dict[str, Any]:
    """One arm: what it is, and what came of it at each budget."""
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
        "steps": found.tokens(arm, budget) // found.configs[arm].train.batch_tokens,
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
        },
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
