"""From finished run folders to the figures of a comparison; reads what training wrote, no more."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unitsphere.report.curves import Curve
from unitsphere.report.table import Arm
from unitsphere.studies.outcomes import size_of
from unitsphere.training.config import RunConfig
from unitsphere.training.log import read_metrics, read_samples
from unitsphere.training.recipes import load_recipe


@dataclass(frozen=True)
class Finished:
    """A finished run: its resolved config, its row of the table, its curve, its last sample."""

    config: RunConfig
    arm: Arm
    curve: Curve
    sample: str


def read_finished(name: str, recipe: str, run: Path) -> Finished:
    """The figures of a finished run; `steps_to_baseline` is still open (see `against`)."""
    config = load_recipe(run / "config.json")
    records = read_metrics(run)
    evaluations = [record for record in records if "val_bits_per_byte" in record]
    last = evaluations[-1]
    arm = Arm(
        name=name,
        recipe=recipe,
        run=str(run),
        parameters=size_of(config).parameters,
        lr=config.optim.lr,
        steps=last["step"],
        tokens=last["tokens"],
        bits_per_byte=last["val_bits_per_byte"],
        steps_to_baseline=None,
        ms_per_step=milliseconds(config, records),
        seconds=last["time"],
    )
    curve = Curve(
        name,
        [record["step"] for record in evaluations],
        [record["time"] for record in evaluations],
        [record["val_bits_per_byte"] for record in evaluations],
    )
    return Finished(config, arm, curve, last_sample(run))


def milliseconds(config: RunConfig, records: Sequence[dict[str, Any]]) -> float:
    """Median milliseconds a step over a run's records; evaluations are not in it."""
    rates = [r["tokens_per_second"] for r in records if "tokens_per_second" in r]
    return 1000 * config.train.batch_tokens / statistics.median(rates)


def last_sample(run: Path) -> str:
    """The last text of samples.txt; empty if there is none."""
    written = read_samples(run)
    return written[-1][1] if written else ""


def against(baseline: Finished | None, runs: Sequence[Finished]) -> list[Arm]:
    """The runs' rows, each with the steps it took to the baseline's last bits per byte.

    That is the first evaluation at or below it: nothing is interpolated or extrapolated.
    """
    if baseline is None:
        return [run.arm for run in runs]
    target = baseline.arm.bits_per_byte
    return [replace(run.arm, steps_to_baseline=first_step_below(run.curve, target)) for run in runs]


def first_step_below(curve: Curve, target: float) -> int | None:
    """The step of the first evaluation at or below `target`, or None if there is none."""
    reached = (s for s, b in zip(curve.steps, curve.bits_per_byte, strict=True) if b <= target)
    return next(reached, None)
