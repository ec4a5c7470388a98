"""Where and how a run computes, decided once, and the objects that it trains with.

`Plan` holds every decision: the processes' layout, the device, the precision, whether the blocks
are compiled, and how many sequences go through the model at once. It is made from the resolved
config before anything is built; nothing decides these again. `build_trainer` builds by it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.data.batches import ByStep
from unitsphere.inspection.live import Live
from unitsphere.kernels import use_kernels
from unitsphere.kernels.device_attention import use_attention_of
from unitsphere.models.experts import ExpertLinear
from unitsphere.models.parts import Linear
from unitsphere.models.plans import input_bounds
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.ops.fp8 import MULTIPLE, Bounded
from unitsphere.training.checkpoint.tensors import check_finite, load_model
from unitsphere.training.config import RunConfig
from unitsphere.training.device import (
    Precision,
    check_memory,
    device_and_precision,
    keep_freed_memory,
)
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.distributed.parallelize import fill, parallelize
from unitsphere.training.distributed.processes import LocalTime
from unitsphere.training.forecast import fitting_rows, shapes_of
from unitsphere.training.guard import Guard
from unitsphere.training.optim import build_optimizer
from unitsphere.training.optim.constraint import ConstraintKind, bounds_of, constrain
from unitsphere.training.optim.frequency import weigh_head
from unitsphere.training.optim.schedule import warmup_steps

log = logging.getLogger("unitsphere.fp8")


@dataclass(frozen=True)
class Plan:
    """Where and how this process computes. micro_batch: sequences at once; none: its whole part."""

    device: torch.device
    precision: Precision
    compiled: bool
    micro_batch: int | None
    layout: Layout = SINGLE


@dataclass(frozen=True)
class Trainer:
    """What a run trains, on what, and how. `loss` is the model's, as `parallelize` made it."""

    config: RunConfig
    plan: Plan
    model: Transformer
    loss: Callable[..., Tensor]
    optimizer: Optimizer
    batches: ByStep
    guard: Guard = field(default_factory=Guard)
    local_time: LocalTime = field(default_factory=LocalTime)
    live: Live = field(default_factory=Live)


def make_plan(config: RunConfig, layout: Layout = SINGLE) -> Plan:
    """The plan of a resolved config on a layout whose degrees are decided.

    Raises UserError for fp8 on a device that does not have it.
    """
    train = config.train
    device, precision = device_and_precision(train.device, train.precision)
    return Plan(device, precision, compiles(train.compile, device), train.micro_batch, layout)


def plan_run(config: RunConfig, layout: Layout) -> Plan:
    """The plan of a run, with the degrees of parallelism by the model's size.

    Raises UserError for sizes that do not fit memory or ranks.
    """
    count = sum(parameter.numel() for parameter in shapes_of(config).parameters())
    plan = make_plan(config, layout)
    device, context = plan.device.type, config.data.context
    check_memory(count, layout.world, device)
    layout = layout.for_model(config.parallel, count, config.rows, context, device)
    return replace(plan, layout=layout)


def rows_at_once(config: RunConfig, plan: Plan) -> int | None:
    """`train.micro_batch`, or on a GPU as many sequences as are predicted to fit it at once."""
    if plan.micro_batch is not None or plan.device.type != "cuda":
        return plan.micro_batch  # a CPU's memory is the machine's: the whole batch goes at once
    shapes = shapes_of(config)
    if plan.precision == "bf16-storage":
        shapes.to(torch.bfloat16)
    if plan.layout.shards_weights:
        parallelize(shapes, plan.layout, config.train.recompute)
    free = torch.cuda.mem_get_info(plan.device)[0]
    return fitting_rows(config, shapes, plan.layout, free, plan.device)


def compiles(wanted: bool | None, device: torch.device) -> bool:
    """Whether a run compiles: what `train.compile` says, or else only on a GPU."""
    return device.type == "cuda" if wanted is None else wanted


def build_trainer(
    config: RunConfig, batches: ByStep, plan: Plan | None = None, start: Path | None = None
) -> Trainer:
    """Model, optimizer with its constraint, and batches, at the start of the run.

    plan: none for one process, as `make_plan` has it. start: the checkpoint whose weights replace
    random ones. Raises UserError for sizes that do not fit the layout.
    """
    plan = plan or make_plan(config)
    whole = shapes_of(config) if plan.layout.shards_weights else None
    on = plan.device if whole is None else "meta"
    model = build_from(config.architecture, config.model, on, config.train.seed, config.objective)
    if plan.precision == "bf16-storage":
        model.to(torch.bfloat16)
    use_kernels(config.train.kernels)
    use_attention_of(plan.device)
    keep_freed_memory(plan.device)
    if plan.precision == "fp8":
        use_fp8(model, config.optim.constrained.kind)
    loss = parallelize(
        model,
        plan.layout,
        config.train.recompute,
        plan.compiled,
        plan.precision,
        label_smoothing=config.train.label_smoothing,
        z_loss=config.train.z_loss,
        logit_power=config.optim.logit_power,
    )
    if whole is not None:
        fill(model, whole, config.train.seed, plan.device)
    if start is not None:  # before the constraint, which holds for these weights then
        load_model(start, model)
        check_finite(model.state_dict(), f"checkpoint {start}")
    optimizer = build_optimizer(model, config.optim)
    if config.optim.head_by_frequency:
        weigh_head(model, optimizer, batches, config.train.batch_tokens)
    warmup = warmup_steps(config.schedule, config.train.steps)
    constrain(model, optimizer, config=config.optim.constrained, warmup=warmup)
    config.optim.average.attach(optimizer, config.train.steps)
    guard = Guard(config.train.on_spike, config.train.spike_sigma)
    local_time, live = LocalTime(plan.layout), Live(config.inspect)
    return Trainer(config, plan, model, loss, optimizer, batches, guard, local_time, live)


def use_fp8(model: Transformer, kind: ConstraintKind = "declared") -> None:
    """Let every `Linear` of the blocks multiply in FP8 from now on (`ops.fp8`).

    `kind` is the constraint that training keeps. Weights that it bounds have a static scale, and
    so have their inputs where the architecture declares a bound; all else has dynamic ones.
    Layers whose sizes are not multiples of 16 stay as they are, logged once.

    Experts stay in bf16: their products are grouped.

    Call it before `torch.compile`. Training wants bf16 autocast around the forward pass; a CPU
    computes the same numbers, but slower than in fp32.
    """
    radius = {c.parameter: c.radius for c in bounds_of(model, kind)}
    inputs = input_bounds(model)
    plain: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, ExpertLinear):
            continue
        if isinstance(layer, Linear) and layer.role == "matrix":
            if any(size % MULTIPLE for size in layer.weight.shape):
                plain.append(name)
                continue
            weight = radius.get(f"{name}.weight")
            layer.fp8 = Bounded(inputs.get(name) if weight is not None else None, weight)
    if plain:
        log.warning(
            "fp8: %s and %d more are multiplied in bf16: their sizes are not multiples of %d",
            plain[0],
            len(plain) - 1,
            MULTIPLE,
        )
