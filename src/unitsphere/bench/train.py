"""`unitsphere bench`: what a training step costs, arm against arm.

Ceilings; then each arm's first steps, which must be those of its reference; warm-up; then rounds
in which every arm makes a few steps, in an order that rotates; memory and kernels; ceilings again.
The first arm is the baseline, and runs twice: what lies between its copies is noise.
"""

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unitsphere.bench import gate
from unitsphere.bench.arms import Sizes, arm_config, arm_kernels, check_names
from unitsphere.bench.ceilings import DRIFT, Ceilings, ceilings, drift
from unitsphere.bench.memory import METHODS, held_bytes, kernels_of, peak_of
from unitsphere.bench.statistics import Interval, is_tie, noise_floor, ratios, rotated
from unitsphere.bench.steps import Stepper, clock_name, timed
from unitsphere.training.device import peak_flops
from unitsphere.training.environment import environment
from unitsphere.training.forecast import flops_per_token

COPY = " (copy)"


@dataclass(frozen=True)
class Protocol:
    """How often: steps before the first round, rounds, and steps of each arm in a round."""

    warmup: int
    rounds: int
    steps: int


@dataclass
class Arm:
    """An arm at work. `times` holds the median step of each round, in ms."""

    name: str
    stepper: Stepper
    off: float | None
    times: list[float] = dataclasses.field(default_factory=list)
    peak: int = 0
    kernels: int | None = None


def bench_training(names: Sequence[str], sizes: Sizes, protocol: Protocol) -> dict[str, Any]:
    """Everything that the verb reports, as plain values.

    Raises UserError for an arm that is none, or that computes something else than its reference.
    """
    check_names(names)
    device = torch.device(sizes.device)
    # All arms share code that is compiled anew for each; beyond its limit torch would go on eager.
    with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
        first = ceilings(device)
        arms = [start(name, sizes) for name in [names[0], names[0] + COPY, *names[1:]]]
        measure(arms, protocol, device)
        last = ceilings(device)
    return report(arms, sizes, protocol, device, first, last)


def start(name: str, sizes: Sizes) -> Arm:
    """An arm past the gate."""
    say(f"{name}: first steps")
    arm = name.removesuffix(COPY)
    config, kernels = arm_config(arm, sizes), arm_kernels(arm)
    stepper = Stepper(config, kernels)
    off = gate.check(name, config, kernels, gate.first_losses(stepper))
    return Arm(name, stepper, off)


def measure(arms: Sequence[Arm], protocol: Protocol, device: torch.device) -> None:
    """Warm up, time the rounds, then look at memory and kernels."""
    for arm in arms:
        timed(arm.stepper.step, protocol.warmup, device)
    for number in range(protocol.rounds):
        say(f"round {number + 1} of {protocol.rounds}")
        for arm in rotated(arms, number):
            arm.times.append(statistics.median(timed(arm.stepper.step, protocol.steps, device)))
    for arm in arms:
        job = arm.stepper.job
        arm.peak = held_bytes(job.model, job.optimizer) + peak_of(arm.stepper.step, device)
        arm.kernels = kernels_of(arm.stepper.step, device)


def report(
    arms: Sequence[Arm],
    sizes: Sizes,
    protocol: Protocol,
    device: torch.device,
    first: Ceilings,
    last: Ceilings,
) -> dict[str, Any]:
    """The document of the command line's contract, with what else was found."""
    base, copy, *others = arms
    same = ratios(copy.times, base.times)
    floor = noise_floor(same)
    moved = drift(first, last)
    against = {f"{arm.name}/{base.name}": ratios(arm.times, base.times) for arm in others}
    return {
        "environment": environment(device)
        | {
            "sizes": dataclasses.asdict(sizes) | {"precision": base.stepper.job.precision},
            "protocol": dataclasses.asdict(protocol),
            "clock": clock_name(device),
            "memory": METHODS[device.type],
        },
        "noise": {"arm": base.name, **dataclasses.asdict(same), "floor": floor},
        "ceilings": {
            "first": dataclasses.asdict(first),
            "last": dataclasses.asdict(last),
            "drift": moved,
            "drifted": moved > DRIFT,
        },
        "arms": {arm.name: figures(arm, sizes) for arm in [base, *others]},
        "ratios": {name: told(ratio, floor) for name, ratio in against.items()},
    }


def figures(arm: Arm, sizes: Sizes) -> dict[str, Any]:
    """What one arm showed; None for what is not known of the device."""
    job = arm.stepper.job
    ms = statistics.median(arm.times)
    tokens_per_second = sizes.tokens / (ms / 1e3)
    operations = tokens_per_second * flops_per_token(job.model, sizes.context)
    peak = peak_flops(job.model.device, job.precision)
    return {
        "ms": ms,
        "tokens_per_second": tokens_per_second,
        "flops_per_second": operations,
        "mfu": None if peak is None else operations / peak,
        "peak_bytes": arm.peak,
        "kernels": arm.kernels,
        "precision": job.precision,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "off_by": arm.off,
        "rounds_ms": arm.times,
    }


def told(ratio: Interval, floor: float) -> dict[str, Any]:
    """A ratio with whether it is a tie."""
    return dataclasses.asdict(ratio) | {"tie": is_tie(ratio, floor)}


def say(line: str) -> None:
    """Progress, on stderr."""
    print(f"bench: {line}", file=sys.stderr, flush=True)
