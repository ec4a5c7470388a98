"""The objects that a run trains with, from its config."""

from dataclasses import replace
from pathlib import Path

import torch

from unitsphere.errors import UserError
from unitsphere.kernels import use_attention_of, use_kernels
from unitsphere.models.registry import build_from
from unitsphere.training.compiling import compiles
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import Batches
from unitsphere.training.device import FP8_NEEDS, pick_precision
from unitsphere.training.fp8 import use_fp8
from unitsphere.training.guard import Guard
from unitsphere.training.live import Live
from unitsphere.training.loop import Job
from unitsphere.training.optim import build_optimizer
from unitsphere.training.optim.constraint import constrain
from unitsphere.training.optim.muon import weigh_head
from unitsphere.training.optim.schedule import warmup_steps
from unitsphere.training.parallel.agree import on_first
from unitsphere.training.parallel.fill import fill
from unitsphere.training.parallel.forecast import fitting_rows
from unitsphere.training.parallel.layout import SINGLE, Layout
from unitsphere.training.parallel.parallelize import parallelize
from unitsphere.training.parallel.processes import own_device
from unitsphere.training.parallel.straggler import OwnTime
from unitsphere.training.tensors import load_model


def build_job(
    config: RunConfig, batches: Batches, layout: Layout = SINGLE, start: Path | None = None
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
        fill(model, config, device)
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
