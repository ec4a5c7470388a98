"""A layout tried out without its machines: one process stands for all, tensors have shapes only.

torch's fake process group answers every collective at once, and the meta device allocates nothing,
so a model of any size can be laid out over any number of processes here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import local, placements
from unitsphere.training.config import RunConfig
from unitsphere.training.cost import Cost, Speed, cost, planned_device, shapes, speed
from unitsphere.training.parallel.forecast import Forecast, forecast, own_rows
from unitsphere.training.parallel.layout import Degrees, Layout, check_rows, degrees
from unitsphere.training.parallel.parallelize import parallelize


@dataclass(frozen=True)
class Shard:
    """A parameter: its whole shape, the first process's part of it, and how it is cut."""

    name: str
    whole: tuple[int, ...]
    part: tuple[int, ...]
    placements: str


@dataclass(frozen=True)
class DryRun:
    """What the first of `world` processes would hold and compute."""

    world: int
    degrees: Degrees
    rows: int
    shards: list[Shard]
    forecast: Forecast
    cost: Cost
    speed: Speed

    @property
    def hours(self) -> float:
        """Of training on all processes."""
        return self.cost.hours(self.speed, self.world)

    def record(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        found = self.forecast
        return {
            "world_size": self.world,
            **self.degrees._asdict(),
            "parameters": self.cost.parameters,
            "sequences_per_process": self.rows,
            "memory": {**vars(found), "total": found.memory},
            "step_flops": found.flops,
            "total_flops": self.cost.flops,
            "tokens": self.cost.tokens,
            "hours": self.hours,
            "throughput": vars(self.speed),
            "disk": self.cost.disk,
            "shards": [vars(shard) for shard in self.shards],
        }


def dry_run(config: RunConfig, world: int) -> DryRun:
    """Lay `config` (resolved) out over `world` processes.

    Raises UserError where a run would: sizes that do not fit the layout.
    """
    model, spent, device = shapes(config), cost(config), planned_device(config, world)
    found = degrees(config.parallel, world, spent.parameters)
    check_rows(config.train.batch_tokens // config.data.context, config.data.context, found)
    with pretended(world):
        layout = Layout(0, world).with_degrees(found, "cpu")
        if found.dp_shard > 1 or found.tp > 1:  # under DDP alone it is whole
            parallelize(model, layout, config.train.recompute)
        return DryRun(
            world=world,
            degrees=found,
            rows=own_rows(config, layout),
            shards=shards(model),
            forecast=forecast(config, model, layout, device),
            cost=spent,
            speed=speed(config, device),
        )


@contextmanager
def pretended(world: int) -> Iterator[None]:
    """Within: this process is the first of `world`, the others are made up."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def shards(model: Transformer) -> list[Shard]:
    """Those of the first block and of what lies outside the blocks; all blocks are alike."""
    return [
        Shard(name, tuple(p.shape), tuple(local(p).shape), describe(p))
        for name, p in model.named_parameters()
        if not name.startswith(("blocks.", "encoder.")) or name.split(".")[1] == "0"
    ]


def describe(parameter: Any) -> str:
    """How a parameter is cut, in words."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return "whole"
    names = mesh.mesh_dim_names or ()
    cuts = [
        f"dim {placement.dim} by {name}"
        for name, placement in zip(names, placements(parameter), strict=True)
        if hasattr(placement, "dim")
    ]
    return ", ".join(cuts) or "whole"
