"""The training loop: batch → loss → backward → clip → optimizer.step (projects) → what is due.

The optimizer projects the constrained parameters itself (`training.constraint.constrain`),
`training.guard` keeps out steps that must not count, and
what is due after a step (logging, validation, samples, checkpoint, stopping) is the monitor's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from unitsphere.data.batch import Batch
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import Precision, RunConfig
from unitsphere.training.corpus import Batches
from unitsphere.training.device import autocast
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
    """What a run trains, on what, and how. `loss` is the model's with the run's extras."""

    config: RunConfig
    model: Transformer
    loss: Callable[..., Tensor]
    optimizer: Optimizer
    batches: Batches
    precision: Precision
    guard: Guard = field(default_factory=Guard)


def train_steps(job: Job, first: int, monitor: Monitor) -> None:
    """Make the updates `first` … steps−1 of a run."""
    for step in range(first, job.config.train.steps):
        monitor.after(step + 1, *update(job, step, monitor.between))


def update(
    job: Job, step: int, between: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor, float]:
    """Update number `step` of a run: the batch's loss, the gradient's norm, the rate."""
    loss = backward(job, job.batches.batch(step), between)
    grad_norm = clip_grad_norm_(job.model.parameters(), job.config.optim.clip or math.inf)
    lr = set_rate(job, step)
    job.guard.step(job.optimizer, step, loss, grad_norm)
    job.optimizer.zero_grad()
    return loss, grad_norm, lr


def backward(job: Job, batch: Batch, between: Callable[[], None] = lambda: None) -> Tensor:
    """Gradients of the mean loss over a batch's targets; that loss, detached.

    The batch goes through the model in parts of `train.micro_batch` rows. Each part counts by
    its targets, so the parts give the whole batch's gradient, up to rounding. `between` is called
    between two of them.
    """
    scored = max(batch.scored, 1)  # a stretch of empty documents has nothing to mask
    total = torch.zeros((), device=job.model.device)
    for index, part in enumerate(batch.split(job.config.train.micro_batch or len(batch))):
        if index:
            between()
        part = part.to(job.model.device)
        with autocast(job.model.device, job.precision):
            loss = job.loss(part.inputs, part.targets, "sum", **part.keywords()) / scored
        loss.backward()
        total += loss.detach()
    return total


def set_rate(job: Job, step: int) -> float:
    """Set each group's learning rate for update `step`, its peak times the schedule's factor.

    The rate that has the peak `optim.lr`.
    """
    scheduled = factor(job.config.schedule, step, job.config.train.steps)
    for group in job.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * scheduled
    return job.config.optim.lr * scheduled
