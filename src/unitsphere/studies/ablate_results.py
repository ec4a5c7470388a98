"""An ablation's figures beside the paper's: relative changes, spread, and whether they agree."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unitsphere.files import write_text
from unitsphere.inspection.weights import EIGEN, effective
from unitsphere.models.parts import Scale
from unitsphere.models.trunk import Transformer
from unitsphere.report.ablation import ablation_page
from unitsphere.studies.ablate import Ablation, AblationStudy, ablation_findings, tokens_of
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.fairness import runs_commit, timing, version_flags
from unitsphere.studies.core.statistics import paired
from unitsphere.studies.tables import PaperTable, Row, load_size
from unitsphere.training.load import load_run

Change = dict[str, float | int | None]
"""A relative change in percent: `mean`, `low` and `high` of its 95% interval, `seeds`."""


def document(study: AblationStudy, found: Ablation, source: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found; `source` says where the figures come from."""
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
        "about": f"{size.about}; {table.smaller}" if size else "the paper's",
        "tokens": study.tokens,
        "seeds": study.seeds,
        "rates": {"how": study.rates, "tuned_on": table.tuned_on},
        "flags": [dataclasses.asdict(flag) for flag in flags],
        "timing": timing(records),
        "rows": [row_document(study, table, row, found) for row in table.rows],
        "provenance": dict(source) | {"runs_commit": runs_commit(records)},
    }


def row_document(
    study: AblationStudy, table: PaperTable, row: Row, found: Ablation
) -> dict[str, Any]:
    """A row: the paper's figures, ours, and how they compare."""
    other, rate = table.reference(row), found.rates[row.name]
    own = found.records[row.name]
    change = change_of(found, row, other, table.measure) if other else None
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
        **figures(own, table.measure),
        "change": change,
        "sign": agreement(paper, change) if other else None,
        "means": means(row, own),
    }


def means(row: Row, records: Mapping[int, Record]) -> dict[str, dict[str, float | None]]:
    """Of each scale whose mean the paper gives: the paper's, and ours over the finished seeds."""
    done = [r.planned.folder for r in records.values() if r.status == "finished"]
    ours = learned_means(done) if row.means else {}
    return {name: {"paper": mean, "ours": ours.get(name)} for name, mean in row.means.items()}


def figures(records: Mapping[int, Record], measure: str) -> dict[str, Any]:
    """A row's own figures: means over the finished seeds, and each seed."""
    done = [record for record in records.values() if record.status == "finished"]
    losses = [record.loss for record in done if record.loss is not None]
    bits = [record.bits_per_byte for record in done if record.bits_per_byte is not None]
    speeds = [r.tokens_per_second for r in done if r.tokens_per_second is not None]
    loss = statistics.mean(losses) if losses else None
    batch = next(iter(records.values())).planned.config.train.batch_tokens if records else 0
    return {
        "loss": loss,
        "perplexity": None if loss is None else math.exp(loss),
        "bits_per_byte": statistics.mean(bits) if bits else None,
        "seconds_a_step": batch / statistics.median(speeds) if speeds else None,
        "runs": {
            str(seed): {"status": r.status, "loss": r.loss, "error": r.error}
            for seed, r in records.items()
        },
    }


def change_of(found: Ablation, row: Row, other: Row, measure: str) -> Change | None:
    """A row's change against another, seed by seed; None if no seed finished both.

    Of the perplexity it is exp(difference of losses) − 1, of the loss its ratio to the mean of the
    other's.
    """
    own, base = found.records[row.name], found.records[other.name]
    pairs = [
        (b, a)
        for seed in own
        if (a := own[seed].loss) is not None and seed in base and (b := base[seed].loss) is not None
    ]
    if not pairs:
        return None
    gap = paired([b for b, _ in pairs], [a for _, a in pairs])
    level = statistics.mean(b for b, _ in pairs)

    def percent(difference: float | None) -> float | None:
        if difference is None:
            return None
        relative = math.expm1(difference) if measure == "perplexity" else difference / level
        return 100 * relative

    means = {"mean": percent(gap.mean), "low": percent(gap.low), "high": percent(gap.high)}
    return {**means, "seeds": gap.n}


def agreement(paper: float | None, change: Change | None) -> str:
    """Whether the sign is the paper's, beyond the spread of the seeds."""
    if change is None:
        return "not finished"
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return "one seed"
    if low <= 0 <= high:
        return "within noise"
    if not paper:
        return "better" if high < 0 else "worse"
    return "same" if (high < 0) == (paper < 0) else "opposite"


def write_ablation(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Write results.json and results.md; their paths."""
    files = [out / "results.json", out / "results.md"]
    write_text(files[0], json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    write_text(files[1], ablation_page(found))
    return files


def failed(found: Mapping[str, Any]) -> list[str]:
    """A line for each run that failed; one that diverged has a result."""
    tuning = dict.fromkeys(error for row in found["rows"] for error in row["rates_failed"])
    return [
        *tuning,
        *final_failures(found),
    ]


def final_failures(found: Mapping[str, Any]) -> list[str]:
    """Those of the rows' own runs."""
    return [
        f"{row['name']} seed {seed}: {run['error']}"
        for row in found["rows"]
        for seed, run in row["runs"].items()
        if run["status"] == "failed"
    ]


SIGNLESS = (*EIGEN, "s_qk")
"""Scales whose sign changes nothing: |α| is used, and q and k both have s_qk."""


def learned_means(runs: Iterable[Path]) -> dict[str, float]:
    """Scale ("s_qk") -> its mean over elements, layers and runs; of those in SIGNLESS of |s|."""
    every = [means_of(load_run(run, device="cpu").model) for run in runs]
    names = every[0] if every else {}
    return {name: statistics.mean(one[name] for one in every) for name in names}


def means_of(model: Transformer) -> dict[str, float]:
    """Of one model, by the values that its forward pass uses."""
    found: dict[str, list[float]] = {}
    for place, module in model.named_modules():
        if isinstance(module, Scale):
            name, value = place.rpartition(".")[2], effective(module)
            value = value.abs() if name in SIGNLESS else value
            found.setdefault(name, []).append(value.mean().item())
    return {name: statistics.mean(values) for name, values in found.items()}
