"""`unitsphere train … --dry_run`: what a layout would hold and compute, without its machines."""

import dataclasses
from typing import TYPE_CHECKING

from unitsphere.cli.output import print_json, print_table

if TYPE_CHECKING:
    from unitsphere.training.config import RunConfig
    from unitsphere.training.cost import DryRun


def show_dry_run(config: "RunConfig", world: int, json: bool) -> int:
    """Lay the run out over `world` processes and print that, as tables or one JSON document."""
    from unitsphere.training.cost import dry_run

    found = dry_run(planned(config, world), world)
    if json:
        print_json(found.record())
    else:
        print_dry_run(found)
    return 0


def planned(config: "RunConfig", world: int) -> "RunConfig":
    """The config resolved; in bf16 on GPUs that are not here, unless it names a precision."""
    from unitsphere.training.cost import planned_device
    from unitsphere.training.resolve import resolve

    if config.train.precision == "auto" and planned_device(config, world).type == "cuda":
        train = dataclasses.replace(config.train, precision="bf16")
        config = dataclasses.replace(config, train=train)
    return resolve(config, None)


def print_dry_run(found: "DryRun") -> None:
    """The tables: degrees, shards of the first process, memory of each process."""
    from unitsphere.training.forecast import size

    degrees = found.degrees
    print(
        f"{found.world} processes: dp_replicate {degrees.dp_replicate} · dp_shard "
        f"{degrees.dp_shard} · tp {degrees.tp}; {found.rows} sequences of each batch a process"
    )
    cost = found.cost
    print(f"{cost.parameters:,} parameters, {found.forecast.flops:.3e} FLOPs per step")
    print(f"{cost.tokens:,} tokens, {cost.flops:.3e} FLOPs in all")
    print(f"{hours(found.hours)} of training ({found.speed.how})")
    print(f"{size(cost.disk)} of checkpoints on the disk\n")
    rows = [[s.name, shape(s.whole), shape(s.part), s.placements] for s in found.shards]
    print_table(("parameter (of one block)", "whole", "first process", "cut"), rows)
    print()
    memory = found.forecast
    parts = {name: value for name, value in vars(memory).items() if name != "flops"}
    lines = [[name, size(value)] for name, value in parts.items()]
    print_table(("predicted memory", "each process"), [*lines, ["total", size(memory.memory)]])


def hours(count: float) -> str:
    """Hours with two digits, in minutes below one."""
    if count < 1:
        return f"{60 * count:.2g} minutes"
    return f"{count:.2g} hours" if count < 100 else f"{count:,.0f} hours"


def shape(sizes: tuple[int, ...]) -> str:
    """A shape such as 1280 × 64; a scalar has none."""
    return " × ".join(map(str, sizes)) or "scalar"
