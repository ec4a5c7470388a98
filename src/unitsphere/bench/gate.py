"""The gate before any timing: an arm that computes something else may not be timed.

The losses of an arm's first steps are compared with those of its reference: the same run in fp32,
eager, without kernels; sequence by sequence on a GPU, where fp32 needs the memory.
"""

import functools
import math
from collections.abc import Sequence

from unitsphere.bench.steps import Stepper
from unitsphere.errors import UserError
from unitsphere.kernels.registry import Mode
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device, pick_precision

STEPS = 5
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp8": 5e-2, "bf16-storage": 5e-2}
"""Largest difference of a step's loss, divided by the loss, by the arm's precision."""


def first_losses(stepper: Stepper) -> list[float]:
    """Losses of an arm's first steps, in nats."""
    return [stepper.step().item() for _ in range(STEPS)]


def reference_config(config: RunConfig) -> RunConfig:
    """The config of an arm's reference."""
    changes = {"train.precision": "fp32", "train.compile": False}
    if pick_device(config.train.device).type == "cuda":
        changes["train.micro_batch"] = 1
    return with_overrides(config, changes)


@functools.lru_cache(maxsize=1)  # the baseline's copy comes after it, and has the same
def reference_losses(config: RunConfig) -> list[float]:
    """First losses of a reference's config, without kernels."""
    return first_losses(Stepper(config, "off"))


def check(arm: str, config: RunConfig, kernels: Mode, losses: Sequence[float]) -> float | None:
    """The largest difference of the first losses from the reference's, divided by these.

    None if the arm is its own reference. Raises UserError for an arm beyond the tolerance.
    """
    device = pick_device(config.train.device)
    precision = pick_precision(config.train.precision, device)
    reference = reference_config(config)
    plain = kernels == "off" or (kernels == "auto" and device.type == "cpu")
    if plain and reference == with_overrides(config, {"train.precision": precision}):
        return None
    wanted = reference_losses(reference)
    return compare(arm, losses, wanted, TOLERANCE[precision])


def compare(arm: str, losses: Sequence[float], wanted: Sequence[float], tolerance: float) -> float:
    """The largest relative difference; a `UserError` if one is beyond the tolerance."""
    off = [abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True)]
    for step, (difference, loss, other) in enumerate(zip(off, losses, wanted, strict=True), 1):
        if not difference <= tolerance or not math.isfinite(loss):
            raise UserError(
                f"the arm {arm} computes something else: at step {step} its loss is {loss:.6g}, "
                f"in fp32 without compiling {other:.6g}; its times would mean nothing"
            )
    return max(off)
