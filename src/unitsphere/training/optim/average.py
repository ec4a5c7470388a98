"""Averages of the weights, kept by the optimizer, and projected when they are used.

With A the average of a weight W after its step n, and k = n − s the weights averaged so far:

| kind | A ← A + w·(W − A) with | is |
|---|---|---|
| ema | w = max(1 − δ, 1/k) | an exponential average, at first the plain mean |
| tail | w = 1/k | the plain mean of the weights from step s on |

Before step s the average is the weight. An average of unit vectors is shorter than 1, and that of
matrices of one norm has a smaller norm: `load_averages_` projects them onto the constraint again.

A is in the optimizer's state as "average". So it is spread over processes as the weight is, it is
saved and loaded with the rest, and a step that is taken back takes it back. torch's
`swa_utils.AveragedModel` is a second module: a copy of hooks, shards and compiled blocks, whose
counts and values a checkpoint of model and optimizer does not have.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unitsphere.errors import UserError
from unitsphere.models.constraint import declares, roles
from unitsphere.ops.dtensor import local
from unitsphere.ops.project import length, project_sphere_
from unitsphere.training.optim.constraint import (
    FROBENIUS,
    WHOLE,
    ConstraintConfig,
    bounds_of,
    innermost,
    remembered_roles,
)
from unitsphere.training.optim.projection import Frobenius
from unitsphere.training.optim.state import (
    COUNT,
    Slot,
    StateSpec,
    StepHook,
    attach,
    attached,
    skipped,
)

AVERAGE = "average"
"""Name of the average in the optimizer's state."""
DECLARED = ConstraintConfig()
START = {"ema": 0.0, "tail": 0.8}
"""Where averaging starts unless it is said."""


@dataclass(frozen=True)
class AverageConfig:
    """An average of the weights, which is validated too."""

    kind: Literal["none", "ema", "tail"] = "none"
    """ema: exponential; tail: the plain mean of the weights from `start` on"""
    decay: float = 0.999
    """ema: share of the average that a step keeps"""
    start: float | None = None
    """step from which weights are averaged, if 1 or more, else a fraction of the run; none: 0 for
    ema, 0.8 for tail"""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise UserError(f"optim.average.decay must be above 0 and below 1: {self.decay}")
        if self.start is not None and not 0 <= self.start < math.inf:
            raise UserError(f"optim.average.start must be a number from 0 on: {self.start}")

    def first(self, steps: int) -> int:
        """s: steps of a run of `steps` before the first that is averaged."""
        start = START.get(self.kind, 0.0) if self.start is None else self.start
        return round(start if start >= 1 else start * steps)

    def unread(self, steps: int) -> list[str]:
        """A line for each number that is set and that a run of `steps` does not read.

        No error: a run that was trained with one, to no effect, still loads.
        """
        unused = f"not {self.kind}: it is not used"
        lines = []
        if self.kind != "ema" and self.decay != AverageConfig.decay:
            decay = f"optim.average.decay {self.decay:g}"
            lines.append(f"{decay} is for optim.average.kind ema, {unused}")
        if self.kind == "none" and self.start is not None:
            start = f"optim.average.start {self.start:g}"
            lines.append(f"{start} is for optim.average.kind ema or tail, {unused}")
        if self.kind != "none" and self.first(steps) >= steps:
            lines.append(
                f"the average starts after step {self.first(steps):,}, and the run has {steps:,}: "
                "set optim.average.start"
            )
        return lines

    def steps_alike(self, steps: int, more: int) -> int:
        """How many steps from the first on a run of `steps` and one of `more` average alike."""
        starts = self.first(steps), self.first(more)
        return min(starts) if self.kind != "none" and len({*starts}) > 1 else max(steps, more)

    def attach(self, optimizer: Optimizer, steps: int) -> None:
        """Let the optimizer of a run of `steps` keep the average, if there is one."""
        if self.kind != "none":
            average(optimizer, self.decay if self.kind == "ema" else None, self.first(steps))


class Averages(StepHook):
    """Averages the weights after each step: the table above."""

    def __init__(self, decay: float | None, start: int) -> None:
        self.decay, self.start = decay, start

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The average, in fp32 at least, and the count of steps."""
        wide = torch.promote_types(parameter.dtype, torch.float32)
        average = Slot(tuple(parameter.shape), wide, like_parameter=True)
        return {AVERAGE: average, "average_steps": COUNT}

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Average those that were stepped; none in a step that a gradient scaler had left out."""
        if skipped(optimizer):
            return
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        for weight in weights:
            if weight.grad is None:  # an optimizer takes any state for a step done
                continue
            state = optimizer.state[weight]
            wide = torch.promote_types(weight.dtype, torch.float32)
            if AVERAGE not in state:
                state[AVERAGE] = torch.zeros_like(weight, dtype=wide)
                state["average_steps"] = torch.zeros(())
            # Loading moves the count to the weight's device, where each step would wait for it.
            # What was loaded before this hook was attached has the weight's type.
            count = state["average_steps"] = state["average_steps"].float().cpu() + 1
            state[AVERAGE] = state[AVERAGE].to(wide)
            average, share = local(state[AVERAGE]), self.share(int(count))
            average.lerp_(local(weight.detach()).to(average.dtype), share)

    def share(self, step: int) -> float:
        """w of step number `step`, counted from 1."""
        plain = 1 / max(step - self.start, 1)
        return plain if self.decay is None else max(1 - self.decay, plain)


def average(
    optimizer: Optimizer, decay: float | None = 0.999, start: int = 0
) -> list[RemovableHandle]:
    """Average what the optimizer steps, from now on; handles that undo it.

    decay: of an exponential average; None: the plain mean of the weights from step `start` on.
    Call it after `constrain`: what is averaged are the projected weights. `averaged` uses them.
    UserError for a decay or a start that cannot be, and for an optimizer that keeps an average.

    >>> average(optimizer, decay=0.999)
    >>> with averaged(model, optimizer):
    ...     evaluate(model)
    """
    AverageConfig(decay=0.5 if decay is None else decay, start=start)  # refuses what cannot be
    if start != int(start):
        raise UserError(
            "optim.average.start must be a whole number of steps where the length of the training "
            f"is not known: {start}"
        )
    optimizer = innermost(optimizer)
    if any(isinstance(hook, Averages) for hook in attached(optimizer)):
        raise UserError(
            "the optimizer keeps an average already, and two would overwrite each other: leave out "
            "the second call, or remove() the handles of the first"
        )
    return attach(optimizer, Averages(decay, start))


def averages_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameter name -> its average, of all that has been stepped; not projected."""
    state = innermost(optimizer).state
    held = {name: state.get(p, {}).get(AVERAGE) for name, p in model.named_parameters()}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def is_averaging(optimizer: Optimizer) -> bool:
    """Whether the averages differ from the weights by now: steps from the start on were made."""
    starts = [hook.start for hook in attached(optimizer) if isinstance(hook, Averages)]
    counts = (state["average_steps"] for state in optimizer.state.values() if AVERAGE in state)
    return bool(starts) and any(int(count) > starts[0] + 1 for count in counts)


@torch.no_grad()
def load_averages_(
    model: nn.Module,
    averages: Mapping[str, Tensor],
    constraint: ConstraintConfig = DECLARED,
) -> None:
    """Put averages, by parameter name, in the place of the model's weights, and project them.

    Vectors on spheres and in balls are projected, matrices that keep their Frobenius norm get that
    of the weight that was there.
    """
    whole: set[str] = set()
    if constraint.kind in FROBENIUS:
        wanted = remembered_roles(constraint)
        whole = {name for name, role in roles(model).items() if role in wanted}
    for name, tensor in averages.items():
        weight = model.get_parameter(name)
        radius = length(weight.detach(), WHOLE) if name in whole else None
        local(weight.detach()).copy_(local(tensor))
        if radius is not None:
            project_sphere_(weight, WHOLE, radius)
    declared = any(declares(module) for module in model.modules())  # modules of torch's do not
    for bound in bounds_of(model, constraint.kind) if declared else []:
        if bound.parameter in averages:
            bound.project_(model.get_parameter(bound.parameter))


@contextmanager
def averaged(
    model: nn.Module, optimizer: Optimizer, constraint: ConstraintConfig = DECLARED
) -> Iterator[None]:
    """Within: the model has its averaged, projected weights; afterwards its own, bit for bit.

    constraint: what `constrain` was given. Raises UserError if the optimizer keeps no average.
    """
    reshard(model)
    averages = averages_of(model, optimizer)
    if not averages:
        raise UserError(
            "the optimizer keeps no average yet: call average(optimizer), then make a step"
        )
    own = {name: model.get_parameter(name).detach().clone() for name in averages}
    try:
        load_averages_(model, averages, constraint)
        if constraint.kind not in FROBENIUS:
            keep_norms_(model, optimizer, own)
        yield
    finally:
        reshard(model)
        for name, tensor in own.items():
            local(model.get_parameter(name).detach()).copy_(local(tensor))


def keep_norms_(model: nn.Module, optimizer: Optimizer, own: Mapping[str, Tensor]) -> None:
    """Give each matrix whose norm the optimizer keeps that of its own weights, by parameter name.

    MuonH and AdamH do so by themselves, whatever `constrain` was given.
    """
    optimizer = innermost(optimizer)
    hooks = [
        hook for part in (optimizer, *getattr(optimizer, "parts", ())) for hook in attached(part)
    ]
    kept = {id(w) for hook in hooks if isinstance(hook, Frobenius) for w in hook.weights}
    for name, before in own.items():
        weight = model.get_parameter(name)
        if id(weight) in kept:
            project_sphere_(weight, WHOLE, length(before, WHOLE))


def reshard(model: nn.Module) -> None:
    """Let FSDP2 gather its weights again: its outermost module keeps them after a forward pass."""
    gathered: Any = getattr(model, "reshard", None)
    if gathered is not None:
        gathered()
