"""`unitsphere ablate`: a paper's ablation table, trained at the size asked for.

Every row is an arm, from the recipe that the paper's hyperparameters are in; a smaller size sets
width, depth, batch and tokens, and what goes with the width. All rows see the same data in the same
order, for as many tokens as the paper gave them in proportion.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Executor, Record, execute, timing
from unitsphere.studies.core.fairness import (
    Finding,
    check_fair,
    version_flags,
)
from unitsphere.studies.core.kind import Kind, Part, provenance, study_folder, tuning
from unitsphere.studies.core.plan import at_budget, final_run, to_come
from unitsphere.studies.core.spec import OWN_KEYS, ArmSpec, Comparing, Tune
from unitsphere.studies.core.tune import Tuned, tuned_rates
from unitsphere.studies.tables import (
    PAPER,
    PaperTable,
    Rates,
    Row,
    TableSize,
    agreement,
    change_of,
    figures,
    load_size,
    load_table,
    means,
    only,
)
from unitsphere.training.recipes import load_recipe

GIVEN = Tune(points=1)


@dataclass(frozen=True, kw_only=True)
class AblationStudy(Comparing):
    """What `ablate` asks in addition to all studies; `arms` are the table's rows."""

    table: str
    """a table's name"""
    size: str
    """a size's name; "paper": the recipes as they are"""
    tokens: int
    """training tokens of a row whose share is 1"""
    rates: Rates = "given"
    """shared: tuned on the table's `tuned_on` row; each: for every row; given: as it is"""
    shown: list[str] = field(default_factory=list)
    """the rows that are trained; none: all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens < 1:
            raise UserError(f"'tokens' must be at least 1: {self.tokens}")
        missing = [row.name for row in self.paper_table.rows if row.name not in self.arms]
        if missing:
            raise UserError(f"'arms' has no {missing[0]}, a row of {self.table}")
        if self.rates == "each" and any(row.rate != 1 for row in self.paper_table.rows):
            raise UserError(f"{self.table} has rows that differ in their rates: use rates = shared")

    @property
    def paper_table(self) -> PaperTable:
        """The table, with the rows that are trained."""
        return only(load_table(self.table), self.shown)

    def keys(self, arm: str) -> dict[str, object]:
        """A row's keys; but at the paper's size tokenizer and vocabulary go with the data."""
        free = dict.fromkeys([] if self.size == PAPER else ["data.tokenizer", "model.vocab_size"])
        return free | super().keys(arm)


@dataclass(frozen=True)
class Ablation:
    """What was found: each row's rate, and its records by seed."""

    rates: Mapping[str, Tuned]
    records: Mapping[str, Mapping[int, Record]]


def ablation_study(
    name: str,
    size: str = "quickstart",
    tokens: int | None = None,
    rates: Rates | None = None,
    rows: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
) -> AblationStudy:
    """The study of a table at a size; what is left out is as the table's paper has it.

    Raises UserError for an unknown table, size, row or key.
    """
    for key in settings or {}:
        if key in OWN_KEYS:
            raise UserError(f"'{key}' cannot be set for all rows: {OWN_KEYS[key]}")
    chosen = load_size(size)
    table = only(load_table(name), list(rows))
    first = load_recipe(table.rows[0].recipe)
    budget = first.train.steps * first.train.batch_tokens / table.rows[0].share
    arms = {row.name: arm_of(table, row, size, settings or {}) for row in table.rows}
    how = rates or ("given" if size == PAPER else table.rates)
    return AblationStudy(
        table=name,
        size=size,
        tokens=tokens or (chosen.tokens if chosen else round(budget)),
        rates=how,
        shown=[row.name for row in table.rows] if rows else [],
        arms=arms,
        seeds=list(seeds),
        tune=GIVEN if how == "given" else Tune(),
    )


def arm_of(table: PaperTable, row: Row, size: str, settings: Mapping[str, object]) -> ArmSpec:
    """A row as an arm: its recipe, with a user's settings and the size's keys and rate."""
    chosen = load_size(size)
    if chosen is None:
        return ArmSpec(row.recipe, dict(settings))
    architecture = load_recipe(row.recipe).architecture
    rate = chosen.architectures[architecture].lr * row.rate
    keys = chosen.keys(table, row, architecture, settings)
    return ArmSpec(row.recipe, keys, float(f"{rate:.3g}"))


def ablate(study: AblationStudy, out: Path, executor: Executor | None = None) -> Ablation:
    """Train what is missing of the study in the folder `out`.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then resumes.
    """
    table = study.paper_table
    ablation_findings(study)
    with study_folder(out, study, executor) as executor:
        rates = rates_of(study, table, out, executor)
        runs = {
            (row.name, seed): final_run(out, study, row.name, tokens_of(study, row), lr, seed)
            for seed in study.seeds  # what slows the machine for a while falls on every row
            for row in table.rows
            if (lr := rates[row.name].lr) is not None
        }
        records = dict(zip(runs, execute(list(runs.values()), executor), strict=True))
    by_row = {
        row.name: {seed: r for (name, seed), r in records.items() if name == row.name}
        for row in table.rows
    }
    return Ablation(rates, by_row)


def ablation_findings(study: AblationStudy) -> list[Finding]:
    """What is unfair between a row and what it is measured against, and allowed.

    A UserError if it is not allowed.
    """
    table = study.paper_table
    configs = {row.name: at_budget(study, row.name, tokens_of(study, row)) for row in table.rows}
    found = []
    for row in table.rows:
        other = table.reference(row) or row
        pair = {name: configs[name] for name in (other.name, row.name)}
        found += check_fair(pair, other.name, study.allow)
    return list(dict.fromkeys(found))


def tokens_of(study: AblationStudy, row: Row) -> int:
    """A row's training tokens."""
    return round(study.tokens * row.share)


def rates_of(
    study: AblationStudy, table: PaperTable, out: Path, executor: Executor
) -> dict[str, Tuned]:
    """Each row's rate: tuned for itself, tuned on one row for all, or as the study gives it."""
    places = [(row.name, tokens_of(study, row)) for row in table.rows]
    later = to_come(study, places, len(study.seeds))
    if study.rates == "shared":
        own = {table.tuned_on: study.arms[table.tuned_on]}
        one = replace(study, arms=own, shown=[table.tuned_on])
        found = tuned_rates(out, one, [study.tokens], executor, later)
        rate = found[table.tuned_on, study.tokens]
        return {row.name: scaled(rate, row.rate) for row in table.rows}
    tuned = study if study.rates == "each" else replace(study, tune=GIVEN)
    found = tuned_rates(out, tuned, [study.tokens], executor, later)
    return {row.name: found[row.name, study.tokens] for row in table.rows}


def scaled(found: Tuned, factor: float) -> Tuned:
    """The rate of a row whose paper has `factor` times the table's."""
    lr = None if found.lr is None else float(f"{found.lr * factor:.3g}")
    return replace(found, lr=lr)


def document(study: AblationStudy, found: Ablation) -> dict[str, Any]:
    """Everything that was found, with the paper's."""
    table = study.paper_table
    size = load_size(study.size)
    records = [record for runs in found.records.values() for record in runs.values()]
    flags = [*ablation_findings(study), *version_flags(records)]
    return {
        "table": study.table,
        "title": table.title,
        "paper": f"{table.paper}, arXiv {table.arxiv}, {table.place}",
        "protocol": table.protocol,
        "measure": table.measure,
        "size": study.size,
        "about": f"{size.about}; {table.smaller}{changed(study, size)}" if size else "the paper's",
        "tokens": study.tokens,
        "seeds": study.seeds,
        "rates": {"how": study.rates, "tuned_on": table.tuned_on},
        "flags": [dataclasses.asdict(flag) for flag in flags],
        "timing": timing(records),
        "rows": [row_document(study, table, row, found) for row in table.rows],
        "provenance": provenance(records),
    }


def changed(study: AblationStudy, size: TableSize) -> str:
    """What the study sets in place of the size's width, layers, heads, context or batch."""
    given = study.keys(study.paper_table.rows[0].name)
    own = [f"{key} {given[key]}" for key, value in size.set.items() if given.get(key) != value]
    return f"; not the size's: {', '.join(own)}" if own else ""


def row_document(
    study: AblationStudy, table: PaperTable, row: Row, found: Ablation
) -> dict[str, Any]:
    """A row: the paper's figures, ours, and how they compare."""
    other, rate = table.reference(row), found.rates[row.name]
    own = found.records[row.name]
    change = change_of(own, found.records[other.name], table.measure) if other else None
    paper = table.paper_change(row)
    return {
        "name": row.name,
        "label": row.label,
        "recipe": row.recipe,
        "against": other.name if other else None,
        "paper": {
            table.measure: row.figure,
            "change": paper,
            "accuracy": row.accuracy,
            "seconds_a_step": row.seconds,
        },
        "tokens": tokens_of(study, row),
        "lr": rate.lr,
        "lr_at_edge": rate.at_edge,
        "rates_tried": {f"{lr:g}": loss for lr, loss in rate.rates.items()},
        "rates_failed": list(rate.errors),
        **figures(own),
        "change": change,
        "sign": agreement(paper, change) if other else None,
        "means": means(row, own),
    }


def failures(found: Ablation) -> list[str]:
    """A line for each run that failed; a run that diverged has a result."""
    tuning = dict.fromkeys(error for rate in found.rates.values() for error in rate.errors)
    return [
        *tuning,
        *(
            f"{row} seed {seed}: {record.error}"
            for row, records in found.records.items()
            for seed, record in records.items()
            if record.status == "failed"
        ),
    ]


def parts(study: AblationStudy) -> list[Part]:
    """What would be trained."""
    ablation_findings(study)
    table = study.paper_table
    rows = {"shared": [table.tuned_on], "each": [row.name for row in table.rows], "given": []}
    tuned = tuning(study, [study.tokens], rows[study.rates])
    return tuned + [
        Part(row.name, len(study.seeds), at_budget(study, row.name, tokens_of(study, row)))
        for row in table.rows
    ]


KIND = Kind("ablate", AblationStudy, ablate, document, failures, parts)
