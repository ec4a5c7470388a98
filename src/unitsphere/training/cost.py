"""What a run would cost before it is trained: operations, hours, and what it leaves on the disk.

On a CPU the speed is measured: a forward and a backward pass of the model, made smaller until it
takes about a second. A GPU's speed is assumed: most plans are made on another machine.
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import local, placements
from unitsphere.training.config import RunConfig, TrainConfig
from unitsphere.training.device import PEAK_BF16, autocast, peak_flops, pick_device, pick_precision
from unitsphere.training.distributed.layout import Degrees, Layout
from unitsphere.training.distributed.parallelize import parallelize
from unitsphere.training.forecast import (
    Forecast,
    check_optimizer,
    flops_per_token,
    forecast,
    local_rows,
    optimizer_bytes,
    shapes_of,
)
from unitsphere.training.optim.schedule import area

SHARE = 0.4
"""Of a GPU's peak, what training is assumed to reach."""
PEAK_FP32 = 67e12
"""Operations per second of an H100 in fp32, from its data sheet."""
SAMPLE = 2e10
"""Operations of the pass that is timed, at most: well below a second of a core."""


@dataclass(frozen=True)
class Speed:
    """Floating-point operations per second of a process, and where the figure comes from."""

    flops: float
    how: str


@dataclass(frozen=True)
class Cost:
    """A run: parameters, training tokens, operations, and what its checkpoints take.

    disk: bytes of those that are kept at the end.
    """

    parameters: int
    tokens: int
    flops: int
    disk: int

    def hours(self, speed: Speed, world: int = 1) -> float:
        """Hours of training on `world` processes; validations and saving come on top."""
        return self.flops / speed.flops / world / 3600


def cost(config: RunConfig) -> Cost:
    """Returns what training `config` (resolved) would cost, from shapes only."""
    model = shapes_of(config)
    train = config.train
    tokens = train.steps * train.batch_tokens
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    checkpoint = weights + optimizer_bytes(config, model)
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        tokens=tokens,
        flops=tokens * flops_per_token(model, config.data.context),
        disk=checkpoint * kept_checkpoints(train),
    )


def kept_checkpoints(train: TrainConfig) -> int:
    """How many checkpoints are there at the end: the last ones, and one for each `keep_every`."""
    steps, keep_every = train.steps, train.keep_every
    saved = {steps}
    for every in filter(None, (train.save_every, keep_every)):
        saved |= set(range(steps - steps % every, 0, -every)[: train.keep_last])
    last = sorted(saved)[-train.keep_last :]
    if keep_every is None:
        return len(last)
    return steps // keep_every + sum(step % keep_every > 0 for step in last)


def planned_device(config: RunConfig, world: int) -> torch.device:
    """Where a run would be trained: `auto` with several processes means GPUs, also from afar."""
    if config.train.device == "auto" and world > 1:
        return torch.device("cuda")
    return pick_device(config.train.device)


def speed(config: RunConfig, device: torch.device) -> Speed:
    """A process's speed on the device: measured on a CPU, assumed of a GPU."""
    if device.type == "cuda":
        return assumed(config, device)
    small = sample(config)
    model = build_from(small.architecture, small.model, device, objective=small.objective)
    tokens = torch.randint(small.model.vocab_size, (small.rows, small.data.context))
    source = tokens if small.objective == "seq2seq" else None
    precision = pick_precision(small.train.precision, device)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        with autocast(device, precision):
            loss = model.loss(tokens, tokens, source=source)
        loss.backward()
        seconds.append(time.perf_counter() - began)
    flops = flops_per_token(model, small.data.context) * small.train.batch_tokens
    rate = flops / min(seconds)
    return Speed(rate, f"measured here: {rate / 1e9:,.1f} GFLOP/s in a forward and backward pass")


def assumed(config: RunConfig, device: torch.device) -> Speed:
    """The speed of a GPU: SHARE of its peak, of an H100's if it is not known or not here."""
    precision = "fp32" if config.train.precision == "fp32" else "bf16"
    peak = peak_flops(device, precision) if torch.cuda.is_available() else None
    chip = torch.cuda.get_device_name(device) if peak else "H100"
    peak = peak or (PEAK_FP32 if precision == "fp32" else PEAK_BF16[chip])
    return Speed(
        SHARE * peak,
        f"assumed: {SHARE:.0%} of the {precision} peak of one {chip} per process",
    )


def sample(config: RunConfig) -> RunConfig:
    """The config with fewer sequences, layers and tokens, until a step has SAMPLE operations."""
    model, data, train = config.model, config.data, config.train

    def flops() -> int:
        made = build_from(config.architecture, model, "meta", objective=config.objective)
        return flops_per_token(made, data.context)

    def batch() -> int:
        return max(int(SAMPLE / flops()) // data.context, 1) * data.context

    if flops() * data.context > SAMPLE:
        model = dataclasses.replace(model, n_layers=1)
    if flops() * data.context > SAMPLE:
        data = dataclasses.replace(data, context=max(int(SAMPLE / flops()), 16))
    train = dataclasses.replace(train, batch_tokens=min(train.batch_tokens, batch()))
    return dataclasses.replace(config, model=model, data=data, train=train)


@dataclass(frozen=True)
class Shard:
    """A parameter: its whole shape, the first rank's shard of it, and how it is sharded."""

    name: str
    whole: tuple[int, ...]
    part: tuple[int, ...]
    placements: str


@dataclass(frozen=True)
class DryRun:
    """What the first of `world` processes would hold and compute."""

    world: int
    step_flops: int
    degrees: Degrees
    rows: int
    shards: list[Shard]
    forecast: Forecast
    cost: Cost
    speed: Speed
    schedule_area: float

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
            # Its readers find the step's operations among the memory, too.
            "memory": {**vars(found), "flops": self.step_flops, "total": found.memory},
            "step_flops": self.step_flops,
            "total_flops": self.cost.flops,
            "tokens": self.cost.tokens,
            "schedule_area": self.schedule_area,
            "hours": self.hours,
            "throughput": vars(self.speed),
            "disk": self.cost.disk,
            "shards": [vars(shard) for shard in self.shards],
        }


def dry_run(config: RunConfig, world: int) -> DryRun:
    """Lay `config` (resolved) out over `world` processes.

    Raises UserError where a run would: sizes or a constraint that do not fit the layout.
    """
    model, spent, device = shapes_of(config), cost(config), planned_device(config, world)
    sizes = spent.parameters, config.rows, config.data.context
    with pretended(world):
        layout = Layout(0, world).for_model(config.parallel, *sizes, "cpu")
        if layout.shards_weights:  # with only DDP it is whole
            parallelize(model, layout, config.train.recompute)
            check_optimizer(config, model)
        return DryRun(
            world=world,
            step_flops=spent.flops // config.train.steps,
            degrees=layout.degrees,
            rows=local_rows(config, layout),
            shards=shards(model),
            forecast=forecast(config, model, layout, device),
            cost=spent,
            speed=speed(config, device),
            schedule_area=area(config.schedule, config.train.steps),
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
    """Those of the first block and of everything outside the blocks; all blocks are alike."""
    return [
        Shard(name, tuple(p.shape), tuple(local(p).shape), describe(p))
        for name, p in model.named_parameters()
        if not name.startswith(("blocks.", "encoder.")) or name.split(".")[1] == "0"
    ]


def describe(parameter: Any) -> str:
    """How a parameter is sharded, in words."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return "whole"
    names = mesh.mesh_dim_names or ()
    sharded = [
        f"dim {placement.dim} by {name}"
        for name, placement in zip(names, placements(parameter), strict=True)
        if hasattr(placement, "dim")
    ]
    return ", ".join(sharded) or "whole"
