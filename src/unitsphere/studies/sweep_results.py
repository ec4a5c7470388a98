"""What a sweep leaves in its folder: results.json, results.md, a picture, and each best config."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unitsphere.config import to_dict
from unitsphere.files import write_text
from unitsphere.report.sweep import sweep_page, sweep_picture
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.fairness import runs_commit
from unitsphere.studies.core.space import Choices, Range, Space
from unitsphere.studies.core.spec import toml_text
from unitsphere.studies.core.statistics import paired
from unitsphere.studies.sweep import SweepStudy, point_config
from unitsphere.studies.trials import Swept, Trial, figure, importance


def document(study: SweepStudy, found: Mapping[str, Swept], source: Mapping[str, Any]) -> Any:
    """Everything that was found; `source` says where the figures come from."""
    reported = [r for swept in found.values() for r in swept.reported]
    return {
        "method": study.method,
        "tokens": study.tokens,
        "search": study.search,
        "arms": {arm: arm_document(study, arm, swept) for arm, swept in found.items()},
        "provenance": dict(source) | {"runs_commit": runs_commit(reported)},
    }


def arm_document(study: SweepStudy, arm: str, found: Swept) -> dict[str, Any]:
    """An arm's trials on the split that was searched on, and what was reported."""
    best = found.best
    both = [s for s in found.as_is if is_finished(found.as_is[s], found.at_best.get(s))]
    pairs = [(figure(found.as_is[seed]), figure(found.at_best[seed])) for seed in both]
    gap = paired([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None
    return {
        "recipe": study.arms[arm].recipe,
        "measure": measure(best),
        "best": None if best is None else {"trial": best.number, "params": best.params},
        "at_edge": [] if best is None else edges(study.space, best),
        "importance": importance(study.space, found.trials),
        "trials": [trial_document(trial) for trial in found.trials],
        "reported": {
            "as_is": {str(seed): run_document(r) for seed, r in found.as_is.items()},
            "best": {str(seed): run_document(r) for seed, r in found.at_best.items()},
            "difference": None if gap is None else asdict(gap),
        },
    }


def measure(best: Trial | None) -> str:
    """What the figures are: bits per byte, or the loss of runs that have none."""
    without = best is not None and best.records[0].bits_per_byte is None
    return "loss" if without else "bits_per_byte"


def is_finished(*records: Record | None) -> bool:
    """Whether all of them are there and came to their end."""
    return all(record is not None and record.status == "finished" for record in records)


def edges(space: Space, best: Trial) -> list[str]:
    """The keys whose best value is the lowest or highest of those to try, not of two."""
    found = []
    for key, choice in space.items():
        values = choice.values if isinstance(choice, Choices) else (choice.low, choice.high)
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        enough = isinstance(choice, Range) or len(numbers) == len(values) > 2
        if enough and best.params[key] in (min(numbers), max(numbers)):
            found.append(key)
    return found


def trial_document(trial: Trial) -> dict[str, Any]:
    """A trial; `figure` is its mean over the seeds on the split that was searched on."""
    return {
        "number": trial.number,
        "params": trial.params,
        "status": trial.status,
        "figure": trial.figure,
        "seeds": {str(record.planned.seed): run_document(record) for record in trial.records},
    }


def run_document(record: Record) -> dict[str, Any]:
    """A run."""
    return {
        "status": record.status,
        "loss": record.loss,
        "bits_per_byte": record.bits_per_byte,
        "run": str(record.planned.folder),
        "error": record.error,
    }


def write_sweep(study: SweepStudy, found: Mapping[str, Swept], doc: Any, out: Path) -> list[Path]:
    """Write the files; their paths."""
    files = [out / "results.json", out / "results.md", out / "trials.png"]
    write_text(files[0], json.dumps(doc, indent=2, ensure_ascii=False) + "\n")
    write_text(files[1], sweep_page(doc, files[2].name))
    sweep_picture(doc, files[2])
    for arm, swept in found.items():
        if swept.best is not None:
            path = out / f"{arm}-best.toml"
            config = point_config(study, arm, swept.best.params)
            write_text(path, toml_text(to_dict(config)))
            files.append(path)
    return files


def failures(found: Mapping[str, Swept]) -> list[Record]:
    """The runs that failed; one that diverged or was stopped has a result."""
    return [
        record
        for swept in found.values()
        for record in [
            *(r for trial in swept.trials for r in trial.records),
            *swept.as_is.values(),
            *swept.at_best.values(),
        ]
        if record.status == "failed"
    ]
