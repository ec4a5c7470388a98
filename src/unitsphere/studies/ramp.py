"""`unitsphere lr-ramp`: how high the rate climbs before the loss diverges, arm against arm.

NormFormer's Figure 5 (arXiv 2110.09456): the rate starts from 0 and rises by the same amount at
each step until training destabilises; the median of the seeds. What has diverged is defined in
training/guard.py. Each run is an ordinary one, in runs/<arm>/seed-<seed>.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Executor, Record, execute
from unitsphere.studies.core.fairness import Finding, check_fair, version_flags
from unitsphere.studies.core.kind import Kind, Part, provenance, study_folder
from unitsphere.studies.core.plan import (
    DEFAULTS,
    RUNS,
    Planned,
    arm_config,
    plan,
    rate_keys,
    with_overrides,
)
from unitsphere.studies.core.spec import Comparing, Tune
from unitsphere.training.guard import MARGIN, PATIENCE, SMOOTHED, smoothed
from unitsphere.training.log import read_metrics
from unitsphere.training.resolve import resolve


@dataclass(frozen=True, kw_only=True)
class RampStudy(Comparing):
    """What `lr-ramp` asks in addition to all studies."""

    peak: float = 0.1
    """rate of the last step"""
    steps: int = 2000
    """steps at most; by default the rate rises by 5e-5 at each, as in the paper"""
    start: float = 0.0
    """rate of the first step, from which it rises by the same ratio at each; 0: by the same amount
    at each, from 0"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune != Tune():
            raise UserError("lr-ramp tunes nothing: leave [tune] out")
        given = [name for name, arm in self.arms.items() if arm.lr is not None]
        if given:
            raise UserError(f"the rate climbs to 'peak': leave 'arms.{given[0]}.lr' out")
        if not 0 <= self.start < self.peak < math.inf:
            raise UserError(
                f"'start' must be at least 0 and below 'peak': {self.start} and {self.peak}"
            )
        if self.steps < 2:
            raise UserError(f"'steps' must be at least 2: {self.steps}")
        for arm in self.arms:
            if found := sorted(self.keys(arm).keys() & own_keys(self, seed=0)):
                raise UserError(f"lr-ramp sets '{found[0]}' itself: leave it out")


@dataclass(frozen=True)
class Climb:
    """How far a run came: step and rate at which its loss diverged, None if it did not.

    losses: of its steps. error: why it failed, if it did. record: of the run.
    """

    seed: int
    step: int | None
    lr: float | None
    losses: Sequence[float] = ()
    error: str | None = None
    record: Record | None = None

    @property
    def risen(self) -> float:
        """Nats by which the smoothed loss ended above its lowest."""
        means = smoothed(self.losses)[SMOOTHED - 1 :]
        return means[-1] - min(means) if means else 0.0


def ramp(study: RampStudy, out: Path, executor: Executor | None = None) -> dict[str, list[Climb]]:
    """Train what is missing of the study in the folder `out`; each arm's runs, one per seed.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then resumes.
    """
    ramp_findings(study)  # a mistake leaves no folder
    with study_folder(out, study, executor) as executor:
        runs = {a: [climbing(out, study, a, seed) for seed in study.seeds] for a in study.arms}
        planned = [runs[arm][place] for place in range(len(study.seeds)) for arm in study.arms]
        records = execute(planned, executor)
    found = {record.planned.folder: read_climb(record) for record in records}
    return {arm: [found[run.folder] for run in runs[arm]] for arm in study.arms}


def ramp_findings(study: RampStudy) -> list[Finding]:
    """What is unfair of the study and allowed; a UserError if it is not allowed."""
    configs = {arm: resolve(arm_config(study, arm), None) for arm in study.arms}
    return check_fair(configs, next(iter(configs)), study.allow, annealed=False)


def climbing(out: Path, study: RampStudy, arm: str, seed: int) -> Planned:
    """A run whose rate climbs until its loss diverges."""
    keys = study.keys(arm) | rate_keys(arm_config(study, arm), study.peak)
    keys |= own_keys(study, seed)
    return plan(f"{arm} #{seed}", study.arms[arm].recipe, keys, out / RUNS / arm / f"seed-{seed}")


def own_keys(study: RampStudy, seed: int) -> dict[str, object]:
    """What makes a run's rate climb and ends the run where it diverges, but for the peak rate."""
    return {
        "schedule.kind": "ramp",
        "schedule.start": study.start / study.peak,
        "schedule.warmup": 0.0,
        "schedule.end": 1.0,
        "schedule.fall": "linear",
        "schedule.power": None,
        "train.steps": study.steps,
        "train.seed": seed,
        "train.log_every": 1,
        "train.on_spike": "stop",
        "train.spike_sigma": None,
        "train.stop_at_divergence": True,
    }


def read_climb(record: Record) -> Climb:
    """How far a run came, from its records."""
    seed = record.planned.seed
    if record.status == "failed":
        return Climb(seed, None, None, error=record.error, record=record)
    folder = record.planned.folder
    records = read_metrics(folder)
    if not records:
        error = f"{folder} has no records of its steps: delete it to repeat the run"
        return Climb(seed, None, None, error=error, record=record)
    step = records[-1].get("diverged")
    lr = next((found.get("lr") for found in records if found.get("step") == step), None)
    losses = [found["loss"] for found in records if "loss" in found]
    return Climb(seed, step, lr, losses, record=record)


def median_rate(climbs: Sequence[Climb]) -> float | None:
    """The median rate at divergence; infinite where that is of a run that did not diverge.

    Runs that failed do not count; None if all did.
    """
    rates = [math.inf if c.lr is None else c.lr for c in climbs if c.error is None]
    return statistics.median(rates) if rates else None


def document(study: RampStudy, climbs: Mapping[str, Sequence[Climb]]) -> dict[str, Any]:
    """The figures as one document; the first arm is the one that the others are divided by.

    "lr" is null where the median run did not diverge: then its rate is above the peak.
    """
    first = median_rate(next(iter(climbs.values())))
    records = [run.record for runs in climbs.values() for run in runs if run.record]
    arms = {}
    for arm, runs in climbs.items():
        lr = median_rate(runs)
        arms[arm] = {
            "recipe": study.arms[arm].recipe,
            "lr": None if lr is None or math.isinf(lr) else lr,
            "reached_peak": lr == math.inf,
            "ratio": ratio(lr, first),
            "seeds": [
                {"seed": run.seed, "lr": run.lr, "step": run.step, "error": run.error}
                for run in runs
            ],
        }
    return {
        "peak": study.peak,
        "steps": study.steps,
        "start": study.start,
        "divergence": {"window": SMOOTHED, "margin": MARGIN, "patience": PATIENCE},
        "arms": arms,
        "flags": [asdict(flag) for flag in (*flags(study, climbs), *version_flags(records))],
        "provenance": provenance(records),
    }


def ratio(lr: float | None, first: float | None) -> float | None:
    """The one divided by the other, None unless both are finite."""
    if lr is None or first is None or math.isinf(lr) or math.isinf(first):
        return None
    return lr / first


def flags(study: RampStudy, climbs: Mapping[str, Sequence[Climb]]) -> list[Finding]:
    """What a reader must know of the figures, each flag by its name."""
    found = ramp_findings(study)
    if len(study.seeds) < 3:
        text = f"seeds: {len(study.seeds)}; the paper takes the median of 3"
        found.append(Finding("few-seeds", text))
    for arm, runs in climbs.items():
        for run in runs:
            if run.error:
                found.append(Finding("failed", f"{arm}, seed {run.seed}: {run.error}"))
            elif run.lr is None and run.risen >= MARGIN / 2:
                text = f"{arm}, seed {run.seed}: ended {run.risen:.2f} above its lowest loss: "
                small = run.risen < MARGIN
                text += f"by less than {MARGIN:g}" if small else f"for fewer than {PATIENCE} steps"
                found.append(Finding("risen", f"{text}, but it may have collapsed all the same"))
        stayed = sum(run.lr is None and run.error is None for run in runs)
        if stayed:
            text = f"{arm}: {stayed} of {len(runs)} did not diverge up to {study.peak:g}"
            found.append(Finding("not-diverged", text))
    return found


def parts(study: RampStudy) -> list[Part]:
    """What would be trained."""
    ramp_findings(study)
    found = []
    for arm in study.arms:
        keys = {**DEFAULTS, **study.keys(arm), "train.steps": study.steps}
        config = resolve(with_overrides(arm_config(study, arm), keys), None)
        found.append(Part(arm, len(study.seeds), config))
    return found


def failures(found: Mapping[str, Sequence[Climb]]) -> list[str]:
    """A line for each run that failed."""
    return [
        f"{arm}, seed {run.seed}: {run.error}"
        for arm, runs in found.items()
        for run in runs
        if run.error
    ]


KIND = Kind("lr-ramp", RampStudy, ramp, document, failures, parts)
