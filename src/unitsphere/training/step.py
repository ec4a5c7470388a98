"""One training step, the whole of it:

    batch → loss → gradients → clip → rate → optimizer.step → projection

`train_step` is the step of anything that is trained here, fine-tuning too. `update` is that of a
run: its batch in parts of `train.micro_batch` rows, on one process or several.

Between the gradients and the weights act, in this order, and nothing else:

| what | where | does |
|---|---|---|
| clip | `train_step` | scales all gradients to a norm of at most `optim.clip` |
| spikes | `guard.py` | leave a step out, or take it back, as `train.on_spike` says |
| `StepHook.before` | in `optimizer.step()` (`optim/`) | changes gradients (`head_by_frequency`, \
`riemannian`); where a kernel serves, moves and projects a weight itself, and takes its gradient \
away so that the optimizer skips that weight |
| the optimizer | in `optimizer.step()` | moves the other weights |
| `StepHook.after` | in `optimizer.step()` | projects them; gives the gradients back |
| `balance_` | `update` | moves the bias of experts (`models/experts.py`) |

The hooks (`optim/state.py`) are those that `constrain` and `weigh_head` attached to the optimizer
when the run was built.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from unitsphere.data.batch import Batch
from unitsphere.models.experts import balance_, start_counting_
from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import by_mesh, local, placements, whole
from unitsphere.training.device import autocast
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.guard import Guard
from unitsphere.training.optim.muon import cool_momentum
from unitsphere.training.optim.schedule import factor, with_decay
from unitsphere.training.plan import Trainer

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class Monitor(Protocol):
    """What happens between two steps, and between two micro-batches of one."""

    def between(self) -> None:
        """Called between two micro-batches; the run stops here by an exception."""
        ...

    def after(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Called when `step` updates have been made, with what the last of them showed."""
        ...


def train_steps(trainer: Trainer, first: int, monitor: Monitor) -> None:
    """Make the updates `first` … steps−1 of a run."""
    for step in range(first, trainer.config.train.steps):
        monitor.after(step + 1, *update(trainer, step, monitor.between))


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    gradients: Callable[[], Tensor],
    step: int,
    scheduled: float,
    clip: float = math.inf,
    guard: Guard | None = None,
    watched: AbstractContextManager[object] | None = None,
    cooled: Mapping[float, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Make one step; returns the batch's loss and the norm of its gradient before clipping.

    gradients: leaves the gradient of a batch's loss in the weights' `.grad`, summed over all
    processes, and returns the loss, detached. An exception in it leaves the weights as they were.
    step: its number, from 0 on. scheduled: the schedule's factor of the peak rates.
    clip: the largest norm of the whole gradient. guard: leaves spikes out; none: every step counts.
    watched: entered with the gradients as they came, left when the weights have moved.
    cooled: cool-down -> the schedule's factor, for groups that have their own cool-down; none:
    those follow `scheduled` too.
    """
    loss = gradients()
    with watched or nullcontext():
        grad_norm = clip_gradients(model, clip)
        set_rates(optimizer, scheduled, cooled)
        if guard is None:
            optimizer.step()  # moves and projects: see the table above
        elif guard.counts(step, loss, grad_norm):
            with guard.undoing_spikes(optimizer):
                optimizer.step()
    optimizer.zero_grad()
    return loss, grad_norm


@torch.no_grad()
def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients so that their norm, as one vector over all processes, is at most `limit`.

    Returns the norm before that, a plain tensor that is the same in every process. The tensors may
    be on several meshes (FSDP's shards, what tensor parallel cut, gains that are whole
    everywhere), and torch's foreach functions take one mesh at a time.
    """
    groups = by_mesh(p for p in model.parameters() if p.grad is not None)
    if len(groups) == 1 and not hasattr(groups[0][0], "device_mesh"):
        return clip_grad_norm_(groups[0], limit)
    norms = [
        whole(get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups
    ]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        clip_grads_with_norm_(group, limit, norm)
    return norm


def all_finite(model: nn.Module, layout: Layout) -> bool:
    """Whether every weight is finite, in all processes."""
    parts = [local(p).detach() for p in model.parameters()]
    parts = [part for part in parts if part.numel()]  # FSDP's may be empty
    largest = get_total_norm(parts, math.inf)  # unlike isfinite() it needs no memory
    return not layout.any(not bool(largest.isfinite()))


def set_rates(
    optimizer: Optimizer, scheduled: float, cooled: Mapping[float, float] | None = None
) -> None:
    """Set each group's learning rate: its peak times the schedule's factor.

    Without `cooled`, in fine-tuning, groups with their own cool-down follow `scheduled` too.
    """
    for group in optimizer.param_groups:
        own = group.get("cooldown")
        follows = scheduled if own is None or cooled is None else cooled[own]
        group["lr"] = group["initial_lr"] * follows


def update(
    trainer: Trainer, step: int, between: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor, float]:
    """Make update number `step` of a run: the batch's loss, the gradient's norm, and the learning
    rate of the groups whose peak is `optim.lr`."""
    config, model, layout = trainer.config, trainer.model, trainer.plan.layout
    seed_dropout(trainer, step)
    with trainer.local_time.loading():
        batch = local_batch(trainer, step)

    def gradients() -> Tensor:
        start_counting_(model)
        loss = backward(trainer, batch, between)
        if layout.degrees.tp > 1:
            redistribute(model)
        reduce_small(model, layout)
        return loss

    steps, cooldowns = config.train.steps, config.optim.roles.cooldowns
    scheduled = factor(config.schedule, step, steps)
    cooled = {own: factor(with_decay(config.schedule, own), step, steps) for own in cooldowns}
    cool_momentum(trainer.optimizer, steps - step)
    loss, grad_norm = train_step(
        model,
        trainer.optimizer,
        gradients,
        step,
        scheduled,
        config.optim.clip or math.inf,
        trainer.guard,
        trainer.live.updating(step + 1, model),
        cooled,
    )
    balance_(model, layout.sum_, trainer.guard.left_out(step))
    return loss, grad_norm, config.optim.lr * scheduled


def seed_dropout(trainer: Trainer, step: int) -> None:
    """With several processes, what dropout draws in a step depends only on seed, step and rows.

    So no state of generators is kept for each process, and a run resumes on any number of them.
    """
    layout = trainer.plan.layout
    if layout.world > 1:
        place = [trainer.config.train.seed, step, layout.data_rank]
        seed = int(np.random.SeedSequence(place).generate_state(1)[0])
        torch.default_generator.manual_seed(seed)  # not torch's for all devices: 16 ms of a CPU
        if trainer.model.device.type == "cuda":
            torch.cuda.manual_seed(seed)


def local_batch(trainer: Trainer, step: int) -> Batch:
    """This process's rows of a step's batch, which is the same on any layout."""
    layout = trainer.plan.layout
    if layout.degrees.data == 1:
        return trainer.batches.batch(step)
    return trainer.batches.rows(step, *layout.rows(trainer.config.rows))


def backward(trainer: Trainer, batch: Batch, between: Callable[[], None] = lambda: None) -> Tensor:
    """Gradients of the mean loss over the targets of all processes; that loss, detached.

    `batch` is this process's part. It goes through the model in parts of `plan.micro_batch` rows.
    Each part counts by its targets, so the parts of all processes give the whole batch's gradient,
    up to rounding. `between` is called between two of them.
    """
    plan, device = trainer.plan, trainer.model.device
    scored = scored_targets(trainer, batch)
    total = torch.zeros((), device=device)
    parts = list(batch.split(plan.micro_batch or len(batch)))
    # DDP sums all that has accumulated: what was summed after an earlier part would count twice.
    each = trainer.config.parallel.reduce == "part" and as_fsdp(trainer.model) is not None
    for number, part in enumerate(parts, 1):
        if number > 1:
            between()
        part = part.to(device)
        reduce_now = each or number == len(parts)
        with reducing(trainer.model, trainer.loss, reduce_now):
            with trainer.local_time.computing(device), autocast(device, plan.precision):
                loss = trainer.loss(part.inputs, part.targets, "sum", **part.keywords()) / scored
            loss.backward()
        total += loss.detach()
    return plan.layout.sum_(total)


def scored_targets(trainer: Trainer, batch: Batch) -> int | Tensor:
    """The targets of all processes that count, at least 1: empty documents have nothing to mask."""
    layout = trainer.plan.layout
    if layout.degrees.data == 1:
        return max(batch.scored, 1)
    mine = torch.tensor(float(batch.scored), device=trainer.model.device)
    return layout.sum_(mine).clamp(min=1)


@contextmanager
def reducing(model: Transformer, loss: object, now: bool) -> Iterator[None]:
    """Within: a loss and its backward pass, whose gradients are summed over the processes `now`, or
    with those of a later one."""
    if isinstance(loss, DistributedDataParallel) and not now:
        with loss.no_sync():
            yield
        return
    if (sharded := as_fsdp(model)) is not None:
        sharded.set_requires_gradient_sync(now)
    yield


def redistribute(model: Transformer) -> None:
    """Sum and cut the gradients that tensor parallel leaves otherwise than their weights."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and placements(gradient) != placements(parameter):
            parameter.grad = gradient.redistribute(  # pyright: ignore[reportAttributeAccessIssue]
                placements=placements(parameter)
            )


def reduce_small(model: Transformer, layout: Layout) -> None:
    """Sum what FSDP leaves alone, gradients of gains, scales and biases, over the batch's parts."""
    if as_fsdp(model) is None:
        return
    left = [p for p in model.parameters() if not is_sharded(p)]
    found = [local(p.grad) for p in left if p.grad is not None]
    if found:
        total = layout.sum_(torch.cat([gradient.flatten().float() for gradient in found]))
        parts = total.split([gradient.numel() for gradient in found])
        for gradient, part in zip(found, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def as_fsdp(model: nn.Module) -> "FSDPModule | None":
    """The model if FSDP has wrapped it. Its module, slow to import, is loaded where that is so."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapped = fsdp is not None and isinstance(model, fsdp.FSDPModule)
    return cast("FSDPModule", model) if wrapped else None


def is_sharded(parameter: Tensor) -> bool:
    """Whether FSDP shards it, also together with tensor parallel."""
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and "dp_shard" in (mesh.mesh_dim_names or ())
