"""The objects that a run trains with, from its config."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from unitsphere.errors import UserError
from unitsphere.inspection.live import Live
from unitsphere.kernels import use_kernels
from unitsphere.kernels.attention import use_attention_of
from unitsphere.models.parts import Linear
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.ops.fp8 import MULTIPLE, Bounded
from unitsphere.training.checkpoint.tensors import load_model
from unitsphere.training.compile_cache import compiles
from unitsphere.training.config import RunConfig
from unitsphere.training.constraint import Kind, bounds_of, constrain
from unitsphere.training.corpus import ByStep
from unitsphere.training.device import FP8_NEEDS, Precision, pick_device, pick_precision
from unitsphere.training.distributed.layout import SINGLE, Layout, check_rows, degrees
from unitsphere.training.distributed.parallelize import fill, parallelize
from unitsphere.training.distributed.processes import on_first, own_device
from unitsphere.training.distributed.straggler import OwnTime
from unitsphere.training.forecast import fitting_rows
from unitsphere.training.frequency import weigh_head
from unitsphere.training.guard import Guard
from unitsphere.training.optim import build_optimizer
from unitsphere.training.schedule import warmup_steps
from unitsphere.training.step import Job


def place(layout: Layout, config: RunConfig) -> Layout:
    """This process's place once the degrees of parallelism are decided by the model's size."""
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
    count = sum(parameter.numel() for parameter in model.parameters())
    device = own_device(config.train.device)
    check_memory(count, layout.world, device.type)
    found = degrees(config.parallel, layout.world, count)
    check_rows(config.train.batch_tokens // config.data.context, config.data.context, found)
    return layout.with_degrees(found, device.type)


def check_memory(parameters: int, world: int, device: str) -> None:
    """Raise UserError for weights that no CPU's memory holds; a GPU says so itself.

    Weights and gradients in fp32, shared by all processes, are the least that training needs.
    """
    need = 8 * parameters / world
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cpu" and need > have:
        raise UserError(
            f"a model of {parameters:,} parameters needs at least {need / 2**30:,.0f} GiB to be "
            f"trained, and this machine has {have / 2**30:,.0f}: lower model.d_model, "
            "model.n_layers or model.vocab_size"
        )


def decide_precision(config: RunConfig, saved: RunConfig | None) -> Precision:
    """The run's precision on its device; a line on stderr where that cannot be fp8 as asked.

    A run begun in fp8 keeps it: `build_job` refuses to go on with it where there is none.
    """
    asked, device = config.train.precision, pick_device(config.train.device)
    before = None if saved is None else saved.train.precision
    if asked == "auto" and before is not None:
        asked = before
    if asked == before == "fp8":
        return "fp8"
    picked = pick_precision(asked, device)
    if asked == "fp8" and picked != "fp8":
        print(f"train.precision fp8 {FP8_NEEDS}: {picked} on {device} instead", file=sys.stderr)
    return picked


def build_job(
    config: RunConfig, batches: ByStep, layout: Layout = SINGLE, start: Path | None = None
) -> Job:
    """Model, optimizer with its constraint, and batches, at the start of the run.

    `start` is the checkpoint whose weights replace random ones. Raises UserError for fp8 on a
    device that has none, and for sizes that do not fit the layout.
    """
    device = own_device(config.train.device)
    precision = pick_precision(config.train.precision, device)
    if config.train.precision == "fp8" and precision != "fp8":
        raise UserError(
            f"train.precision fp8 {FP8_NEEDS}, and this is {device}: take bf16; a run begun in fp8 "
            "goes on in it alone, or starts over with another --out"
        )
    cut = layout.degrees.dp_shard > 1 or layout.degrees.tp > 1
    model = build_from(
        config.architecture,
        config.model,
        "meta" if cut else device,
        config.train.seed,
        config.objective,
    )
    if precision == "bf16-storage":
        model.to(torch.bfloat16)
    use_kernels(config.train.kernels)
    use_attention_of(device)
    if precision == "fp8":
        use_fp8(model, config.optim.constraint.kind)
    loss = parallelize(
        model,
        layout,
        config.train.recompute,
        compiles(config.train.compile, device),
        precision,
        label_smoothing=config.train.label_smoothing,
        z_loss=config.train.z_loss,
    )
    if cut:
        shapes = build_from(config.architecture, config.model, "meta", objective=config.objective)
        fill(model, shapes, config.train.seed, device)
    if start is not None:  # before the constraint, which holds for these weights then
        load_model(start, model)
    optimizer = build_optimizer(model, config.optim)
    if config.optim.head_by_frequency:
        weigh_head(model, optimizer, batches, config.train.batch_tokens)
    warmup = warmup_steps(config.schedule, config.train.steps)
    constrain(model, optimizer, config=config.optim.constraint, warmup=warmup)
    guard = Guard(config.train.on_spike, config.train.spike_sigma)
    own = OwnTime(layout)
    live = Live(config.inspect)
    return Job(config, model, loss, optimizer, batches, precision, layout, guard, own, live)


def with_micro_batch(job: Job) -> Job:
    """The job with as many sequences at once as will fit a GPU, unless their number is given.

    The first process decides for all, which have as much to do and as much memory. On a CPU, whose
    memory is the machine's, the whole batch goes at once.
    """
    device, train = job.model.device, job.config.train
    if train.micro_batch is not None or device.type != "cuda":
        return job

    def decide() -> int:
        free, _ = torch.cuda.mem_get_info(device)
        return fitting_rows(job.config, job.model, job.layout, free)

    micro_batch = on_first(job.layout, decide)
    config = replace(job.config, train=replace(train, micro_batch=micro_batch))
    return replace(job, config=config)


log = logging.getLogger("unitsphere.fp8")


def use_fp8(model: Transformer, kind: Kind = "declared") -> None:
    """Let every `Linear` of the blocks multiply in FP8 from now on (`ops.fp8`).

    `kind` is the constraint that training keeps. Weights that it bounds have a static scale, and
    so have their inputs where the architecture declares a bound; all else has dynamic ones.
    Layers whose sizes are no multiples of 16 stay as they are, logged once.

    Call it before `torch.compile`. Training wants bf16 autocast around the forward pass; a CPU
    computes the same numbers, but slower than in fp32.
    """
    radius = {c.parameter: c.radius for c in bounds_of(model, kind)}
    plain: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, Linear) and layer.role == "matrix":
            if any(size % MULTIPLE for size in layer.weight.shape):
                plain.append(name)
                continue
            weight = radius.get(f"{name}.weight")
            layer.fp8 = Bounded(layer.input_bound if weight is not None else None, weight)
    if plain:
        log.warning(
            "fp8: %s and %d more are multiplied in bf16: their sizes are no multiples of %d",
            plain[0],
            len(plain) - 1,
            MULTIPLE,
        )
