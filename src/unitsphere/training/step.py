"""The training loop: batch → loss → backward → clip → optimizer.step (projects) → what is due.

The optimizer projects the constrained parameters itself (`training.constraint.constrain`),
`training.guard` keeps out steps that must not count, and
what is due after a step (logging, validation, samples, checkpoint, stopping) is the monitor's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.data.batch import Batch
from unitsphere.inspection.live import Live
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import ByStep
from unitsphere.training.device import Precision, autocast
from unitsphere.training.distributed.gradients import clip, reducing, settle
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.distributed.straggler import OwnTime
from unitsphere.training.guard import Guard
from unitsphere.training.schedule import factor


class Monitor(Protocol):
    """What happens between two steps, and between two micro-batches of one."""

    def between(self) -> None:
        """Called between two micro-batches; the run stops here by an exception."""
        ...

    def after(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Called when `step` updates have been made, with what the last of them showed."""
        ...


@dataclass(frozen=True)
class Job:
    """What a run trains, on what, and how. `loss` is the model's, as `parallelize` made it."""

    config: RunConfig
    model: Transformer
    loss: Callable[..., Tensor]
    optimizer: Optimizer
    batches: ByStep
    precision: Precision
    layout: Layout = SINGLE
    guard: Guard = field(default_factory=Guard)
    own: OwnTime = field(default_factory=OwnTime)
    live: Live = field(default_factory=Live)

    @property
    def rows(self) -> int:
        """Sequences of a batch, over all processes."""
        return self.config.train.batch_tokens // self.config.data.context


def train_steps(job: Job, first: int, monitor: Monitor) -> None:
    """Make the updates `first` … steps−1 of a run."""
    for step in range(first, job.config.train.steps):
        monitor.after(step + 1, *update(job, step, monitor.between))


def update(
    job: Job, step: int, between: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor, float]:
    """Update number `step` of a run: the batch's loss, the gradient's norm, the rate."""
    draw_anew(job, step)
    with job.own.loading():
        batch = own_part(job, step)
    loss = backward(job, batch, between)
    settle(job.model, job.layout)
    with job.live.updating(step + 1, job.model):
        grad_norm = clip(job.model, job.config.optim.clip or math.inf)
        lr = set_rate(job, step)
        job.guard.step(job.optimizer, step, loss, grad_norm)
    job.optimizer.zero_grad()
    return loss, grad_norm, lr


def draw_anew(job: Job, step: int) -> None:
    """With several processes, what dropout draws in a step depends on seed, step and rows alone.

    So there is no state of generators to keep for each process, and any number may go on.
    """
    if job.layout.world > 1:
        place = [job.config.train.seed, step, job.layout.data_rank]
        seed = int(np.random.SeedSequence(place).generate_state(1)[0])
        torch.default_generator.manual_seed(seed)  # not torch's for all devices: 16 ms of a CPU
        if job.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)


def own_part(job: Job, step: int) -> Batch:
    """This process's rows of a step's batch, which is the same on any layout."""
    if job.layout.degrees.data == 1:
        return job.batches.batch(step)
    return job.batches.rows(step, *job.layout.rows(job.rows))


def backward(job: Job, batch: Batch, between: Callable[[], None] = lambda: None) -> Tensor:
    """Gradients of the mean loss over the targets of all processes; that loss, detached.

    `batch` is this process's part. It goes through the model in parts of `train.micro_batch` rows.
    Each part counts by its targets, so the parts of all processes give the whole batch's gradient,
    up to rounding. `between` is called between two of them.
    """
    scored = scored_everywhere(job, batch)
    total = torch.zeros((), device=job.model.device)
    parts = list(batch.split(job.config.train.micro_batch or len(batch)))
    for number, part in enumerate(parts, 1):
        if number > 1:
            between()
        part = part.to(job.model.device)
        reduce_now = number == len(parts) or job.config.parallel.reduce == "part"
        with reducing(job.model, job.loss, reduce_now):
            device = job.model.device
            with job.own.computing(device), autocast(device, job.precision):
                loss = job.loss(part.inputs, part.targets, "sum", **part.keywords()) / scored
            loss.backward()
        total += loss.detach()
    return job.layout.sum_(total)


def scored_everywhere(job: Job, batch: Batch) -> int | Tensor:
    """The targets of all processes that count, at least 1: empty documents have nothing to mask."""
    if job.layout.degrees.data == 1:
        return max(batch.scored, 1)
    own = torch.tensor(float(batch.scored), device=job.model.device)
    return job.layout.sum_(own).clamp(min=1)


def set_rate(job: Job, step: int) -> float:
    """Set each group's learning rate for update `step`, its peak times the schedule's factor.

    The rate that has the peak `optim.lr`.
    """
    scheduled = factor(job.config.schedule, step, job.config.train.steps)
    for group in job.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * scheduled
    return job.config.optim.lr * scheduled
