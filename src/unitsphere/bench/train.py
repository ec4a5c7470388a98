"""`unitsphere bench`: the cost of a training step, arm against arm.

First the ceilings of the device are measured. Each arm then passes the gate (`arms.check_arm`),
warms up, and takes its turn in every round, in an order that rotates. Then its memory and its
kernels are counted, and the ceilings are measured again. The first arm is the baseline and runs
twice: the difference between its copies is noise.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import TorchDynamoException

from unitsphere.bench.arms import (
    Sizes,
    Stepper,
    arm_config,
    arm_kernels,
    check_arm,
    check_names,
    first_steps,
)
from unitsphere.bench.measure import (
    COPY,
    DRIFT,
    METHODS,
    Ceilings,
    against_baseline,
    ceilings,
    clock_name,
    drift,
    held_bytes,
    kernels_of,
    peak_of,
    ratio_cells,
    say,
    si,
    size,
    take_turns,
    timed,
)
from unitsphere.errors import UserError
from unitsphere.files import aside
from unitsphere.training.device import environment, peak_flops
from unitsphere.training.forecast import flops_per_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("arm", "ms", "tokens/s", "FLOP/s", "MFU", "peak", "kernels", "÷ baseline", "95%")


@dataclass(frozen=True)
class Protocol:
    """How often: steps before the first round, rounds, and steps of each arm in a round.

    minutes: after which neither an arm nor a round starts; one round is made in any case.
    """

    warmup: int
    rounds: int
    steps: int
    minutes: float | None = None

    def end(self) -> float:
        """When these minutes are over, by `time.monotonic`, if they begin now."""
        return math.inf if self.minutes is None else time.monotonic() + 60 * self.minutes


@dataclass
class Arm:
    """An arm at work. `times` holds the median step of each round, in ms."""

    name: str
    stepper: Stepper
    off: float | None
    times: list[float] = dataclasses.field(default_factory=list)
    peak: int = 0
    kernels: dict[str, Any] | None = None


def bench_training(names: Sequence[str], sizes: Sizes, protocol: Protocol) -> dict[str, Any]:
    """Everything that the verb reports, as plain values.

    Raises UserError for an unknown arm, and for a baseline that computes another thing than its
    reference. Another arm that does, for which there is no memory, or that torch cannot
    compile or run, is left out and named.
    """
    check_names(names)
    for name in names:  # a mistake in the last one is told before minutes of measuring
        arm_config(name, sizes)
        arm_kernels(name)
    device, end = torch.device(sizes.device), protocol.end()
    # All arms share code that is compiled again for each; beyond its limit torch would run eagerly.
    with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
        first = ceilings(device)
        arms = [start(name, sizes) for name in (names[0], names[0] + COPY)]
        left = start_others(arms, names[1:], sizes, end)
        measure(arms, protocol, device, end)
        last = ceilings(device)
    return report(arms, sizes, protocol, device, first, last) | {"left": left}


def start_others(arms: list[Arm], names: Sequence[str], sizes: Sizes, end: float) -> dict[str, str]:
    """Start the arms beside the baseline; name -> why, of those that are left out."""
    left = {}
    for name in names:
        if time.monotonic() > end:
            left[name] = "there was no time for it"
            continue
        try:
            arms.append(start(name, sizes))
        except UserError as error:
            left[name] = str(error)
        except torch.OutOfMemoryError:
            left[name] = "out of GPU memory: give --micro_batch a lower value"
        except TorchDynamoException as error:
            left[name] = f"torch cannot compile it: {first_line(error)}"
        except RuntimeError as error:  # an operation that this device or this torch does not have
            left[name] = f"torch cannot run it: {first_line(error)}"
        if name in left:
            say(f"{name} is left out: {left[name]}")
    return left


def first_line(error: Exception) -> str:
    """The first line of torch's message, before its hints or its trace."""
    return str(error).partition("\n")[0]


def start(name: str, sizes: Sizes) -> Arm:
    """An arm past the gate."""
    say(f"{name}: first steps")
    arm = name.removesuffix(COPY)
    config, kernels = arm_config(arm, sizes), arm_kernels(arm)
    stepper = Stepper(config, kernels)
    off = check_arm(name, config, kernels, first_steps(stepper))
    return Arm(name, stepper, off)


def measure(arms: Sequence[Arm], protocol: Protocol, device: torch.device, end: float) -> None:
    """Warm up, time the rounds, then look at memory and kernels."""
    for arm in arms:
        timed(arm.stepper.step, protocol.warmup, device)
    by_name = {arm.name: arm for arm in arms}

    def median(name: str, number: int) -> float:
        return statistics.median(timed(by_name[name].stepper.step, protocol.steps, device))

    times = take_turns(list(by_name), protocol.rounds, median, warmup=0, tell=True, end=end)
    for arm in arms:
        arm.times = times[arm.name]
        trainer = arm.stepper.trainer
        arm.peak = held_bytes(trainer.model, trainer.optimizer) + peak_of(arm.stepper.step, device)
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
    kept = [base, *others]
    noise, ratios = against_baseline({arm.name: arm.times for arm in kept}, copy.times)
    moved = drift(first, last)
    return {
        "environment": environment(device)
        | {
            "sizes": dataclasses.asdict(sizes) | {"precision": base.stepper.trainer.plan.precision},
            "protocol": dataclasses.asdict(protocol) | {"rounds": len(base.times)},
            "clock": clock_name(device),
            "memory": METHODS[device.type],
        },
        "noise": noise,
        "ceilings": {
            "first": dataclasses.asdict(first),
            "last": dataclasses.asdict(last),
            "drift": moved,
            "drifted": moved > DRIFT,
        },
        "arms": {arm.name: figures(arm, sizes) for arm in kept},
        "ratios": ratios,
    }


def figures(arm: Arm, sizes: Sizes) -> dict[str, Any]:
    """What one arm showed; None for what is not known of the device."""
    trainer = arm.stepper.trainer
    ms = statistics.median(arm.times)
    tokens_per_second = sizes.tokens / (ms / 1e3)
    context = trainer.config.data.context  # an arm may have its own
    operations = tokens_per_second * flops_per_token(trainer.model, context)
    peak = peak_flops(trainer.model.device, trainer.plan.precision)
    return {
        "ms": ms,
        "tokens_per_second": tokens_per_second,
        "flops_per_second": operations,
        "mfu": None if peak is None else operations / peak,
        "peak_bytes": arm.peak,
        "kernels": arm.kernels and arm.kernels["calls"],
        "kernels_ms": arm.kernels and arm.kernels["ms"],
        "longest_kernels": arm.kernels and arm.kernels["longest"],
        "precision": trainer.plan.precision,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "off_by": arm.off,
        "rounds_ms": arm.times,
    }


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row an arm, the baseline first."""
    baseline = report["noise"]["arm"]
    return [
        [
            name,
            f"{arm['ms']:,.1f}",
            f"{arm['tokens_per_second']:,.0f}",
            si(arm["flops_per_second"]),
            "n/a" if arm["mfu"] is None else f"{arm['mfu']:.1%}",
            size(arm["peak_bytes"]),
            "n/a" if arm["kernels"] is None else f"{arm['kernels']:,}",
            *ratio_cells(report["ratios"].get(f"{name}/{baseline}")),
        ]
        for name, arm in report["arms"].items()
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    noise, found, environment = report["noise"], report["ceilings"], report["environment"]
    sizes, protocol = environment["sizes"], environment["protocol"]
    lines = [
        f"{sizes['n_layers']} layers of {sizes['d_model']}, context {sizes['context']:,}, "
        f"{sizes['tokens']:,} tokens per step, V = {sizes['vocab_size']:,}, "
        f"{sizes['precision']} on {environment['device']}, {environment['threads']} threads; "
        f"{environment['clock']}, {protocol['rounds']} rounds of {protocol['steps']} steps",
        f"noise: a second {noise['arm']} took {noise['median']:.3f} of the first's time "
        f"({noise['low']:.3f}–{noise['high']:.3f}): within {noise['floor']:.1%} of 1 is a tie",
        f"ceilings: copy {si(found['last']['copy'])}B/s, "
        f"matmul {si(found['last']['matmul'])}FLOP/s",
    ]
    if any(arm["precision"] == "fp8" for arm in report["arms"].values()):
        lines.append("MFU of an arm in fp8 is over the bf16 peak too: above 100% is possible")
    lines += [f"{name} is left out: {why}" for name, why in report["left"].items()]
    if found["drifted"]:
        lines.append(
            f"the ceilings moved by {found['drift']:.1%} meanwhile: only ratios can be trusted"
        )
    return lines


def check_figure(path: Path) -> None:
    """Raise UserError unless the picture can be written in the form that its name asks for."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--figure {path} must end in .png, .svg or .pdf")


def draw(report: Mapping[str, Any], path: Path) -> Path:
    """Write the picture of a report of `bench_training`; its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from unitsphere.report.render.axes import COLOURS

    arms = report["arms"]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(arms)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (name, arm) in enumerate(arms.items()):
        colour = COLOURS[row % len(COLOURS)]
        rounds = arm["rounds_ms"]
        left.plot(rounds, [row] * len(rounds), ".", color=colour, alpha=0.5)
        left.plot([arm["ms"]], [row], "|", color=colour, markersize=18)
        _ratio(right, row, report["ratios"].get(f"{name}/{report['noise']['arm']}"), colour)
    floor = report["noise"]["floor"]
    right.axvspan(1 - floor, 1 + floor, color="0.88", zorder=0, label="noise")
    left.set_yticks(range(len(arms)), list(arms))
    left.set_ylim(len(arms) - 0.5, -0.5)
    left.set_xlabel("ms per step: each round, and the median")
    right.set_xlabel(f"÷ {report['noise']['arm']}, with the 95% interval; grey: noise")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as drawn:
        figure.savefig(drawn)
    return path


def _ratio(axes: "Axes", row: int, ratio: Mapping[str, Any] | None, colour: str) -> None:
    """The baseline has no interval: it is 1."""
    low, median, high = (ratio[k] for k in ("low", "median", "high")) if ratio else (1, 1, 1)
    axes.plot([low, high], [row, row], color=colour)
    axes.plot([median], [row], "o", color=colour)
