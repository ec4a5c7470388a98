"""Steps that must not count: spikes of the loss, NaN or infinite values; and when a loss diverges.

An update with loss ℓ and gradient norm g is a spike if

- ℓ or g is not finite, or
- ℓ > μ + k·σ: μ and σ are mean and standard deviation of the last 100 losses without spikes
  (before there are so many, no loss is one), k is `train.spike_sigma`, none for no such limit.

All of this is computed on the device; the host reads it with the next record. So what happens with
a spike (`train.on_spike`) costs no wait where there is none:

- stop: the run ends at the next record. What is saved is from before.
- skip: the update is taken back on the device, weights and optimizer state bit for bit. For that a
  second copy of both is kept there. With an optimizer that counts its steps on the host (SOAP,
  adaptive Muons) every step waits once.
- rollback: at the next record the run goes back to its last checkpoint, and from there on without
  the update that was the spike.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from unitsphere.errors import RunFailed
from unitsphere.ops.dtensor import local

OnSpike = Literal["stop", "skip", "rollback"]
WINDOW = 100
"""Losses that a spike is measured by."""
MOST = 10
"""Spikes that are tolerated within WINDOW steps."""
Held = tuple[Tensor, str]
"""A weight, and the name of a tensor of its state or "" for the weight itself."""


class RolledBack(Exception):
    """The run is to go back to its last checkpoint and leave out update `step`."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(why)
        self.step = step


@dataclass(frozen=True)
class Losses:
    """The last WINDOW losses that were not spikes, `seen` in all; the next one replaces the oldest,
    at index `seen` modulo WINDOW.
    """

    values: Tensor
    seen: Tensor

    @classmethod
    def of(cls, values: list[float], seen: int, device: torch.device) -> "Losses":
        """The losses as a checkpoint has them; float64, on `device`."""
        held = torch.zeros(WINDOW, dtype=torch.float64)
        held[: len(values)] = torch.tensor(values[:WINDOW], dtype=torch.float64)
        return cls(held.to(device), torch.tensor(seen, device=device))

    def limit(self, sigma: float) -> Tensor:
        """μ + sigma·σ, or infinity while there are too few."""
        limit = self.values.mean() + sigma * self.values.std(correction=0)
        return torch.where(self.seen >= WINDOW, limit, torch.inf)

    def add(self, loss: Tensor, spike: Tensor) -> "Losses":
        """With one more, unless it is a spike."""
        place = torch.arange(WINDOW, device=loss.device) == self.seen % WINDOW
        values = torch.where(place & ~spike, loss.double(), self.values)
        return Losses(values, self.seen + ~spike)


class Guard:
    """Says which steps count, and leaves spikes out as `on_spike` says.

    limit: what the last loss was measured by. dropped: updates, counted from 0, that a rollback
    leaves out. spikes: recent ones, counted from 1.
    """

    def __init__(self, on_spike: OnSpike = "stop", sigma: float | None = None) -> None:
        self.on_spike, self.sigma = on_spike, sigma
        self.limit = torch.tensor(torch.inf, dtype=torch.float64)
        self.losses: Losses | None = None
        self.dropped: set[int] = set()
        self.kept: dict[Held, Tensor] = {}
        self.spike = torch.tensor(False)
        self.spikes: list[int] = []

    def load(
        self, values: list[float], seen: int, device: torch.device, spikes: Sequence[int] = ()
    ) -> None:
        """Continue from the losses that a checkpoint has, and the steps that were spikes."""
        self.spikes = list(spikes)
        self.limit = self.limit.to(device)
        if self.sigma is not None:
            self.losses = Losses.of(values, seen, device)

    def state(self) -> tuple[list[float], int]:
        """The losses for a checkpoint, and how many were seen."""
        if self.losses is None:
            return [], 0
        seen = int(self.losses.seen)
        return self.losses.values[:seen].tolist(), seen

    def counts(self, step: int, loss: Tensor, grad_norm: Tensor) -> bool:
        """Whether update number `step` is to be made; on the device, judge if it is a spike."""
        if self.losses is not None and self.sigma is not None:
            self.limit = self.losses.limit(self.sigma)
        self.spike = ~(loss.isfinite() & grad_norm.isfinite()) | (loss > self.limit)
        if self.losses is not None:
            self.losses = self.losses.add(loss, self.spike)
        return step not in self.dropped

    def left_out(self, step: int) -> Tensor:
        """Whether update number `step`, the last one judged, does not count; on the device."""
        return self.spike | (step in self.dropped)

    def recent(self, step: int) -> list[int]:
        """The spikes within WINDOW steps before step number `step`."""
        return [s for s in self.spikes if s > step - WINDOW]

    def bears(self, step: int) -> bool:
        """Whether step number `step`, a spike, is left out, instead of ending the run."""
        return self.on_spike != "stop" and len(self.recent(step)) < MOST

    def handle(self, step: int, loss: float, grad_norm: float, limit: float, advice: str) -> str:
        """Count step number `step`, from 1 on, as a spike; what to say of it if it is left out.

        Raises RunFailed, with `advice`, if the run is to stop or has had too many, RolledBack if it
        is to go back.
        """
        why = f"step {step}: loss {loss:.6g}, gradient norm {grad_norm:.6g}"
        if loss > limit:
            why += f", a spike above {limit:.6g}"
        stops, borne = self.on_spike == "stop", self.bears(step)
        self.spikes = [*self.recent(step), step]
        if not borne:
            many = "" if stops else f", the last of {len(self.spikes)} recent ones"
            raise RunFailed(f"{why}{many}; {advice}")
        if self.on_spike == "rollback" and step - 1 not in self.dropped:
            raise RolledBack(step - 1, why)
        return why

    @contextmanager
    def undoing_spikes(self, optimizer: Optimizer) -> Iterator[None]:
        """Within: a step of the optimizer. With on_spike "skip", that of a spike is taken back, on
        the device."""
        if self.on_spike != "skip":
            yield
            return
        before = held_by(optimizer)
        with torch.no_grad():
            for place, tensor in before.items():
                if place not in self.kept:
                    self.kept[place] = torch.empty_like(tensor)
                self.kept[place].copy_(tensor)
        yield
        self.take_back(optimizer, before)

    @torch.no_grad()
    def take_back(self, optimizer: Optimizer, before: dict[Held, Tensor]) -> None:
        """Give weights and state their values from before the step, if it was a spike."""
        after = held_by(optimizer)
        devices = {tensor.device for tensor in after.values()}
        # State on the host needs the answer there: one wait, not one for each tensor.
        spike = {device: self.spike.to(device) for device in devices}
        for place in before:
            there = spike[after[place].device]
            after[place].copy_(torch.where(there, self.kept[place], after[place]))
        new = [place for place in after if place not in before]
        if new and bool(self.spike):  # the host waits, but only for the step that makes the state
            for weight, key in new:
                del optimizer.state[weight][key]


def held_by(optimizer: Optimizer) -> dict[Held, Tensor]:
    """This process's part of the weights and of the state of an optimizer."""
    found = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            found[weight, ""] = weight
            for key, value in optimizer.state.get(weight, {}).items():
                found[weight, key] = value
    return {place: local(tensor) for place, tensor in found.items()}


SMOOTHED = 10
"""Steps over which the loss is smoothed."""
MARGIN = 1.0
"""Nats by which the smoothed loss is above its lowest, or a study's above that of a guess."""
PATIENCE = 20
"""Steps in a row for which it is; more than SMOOTHED, so that a single spike is not enough."""


def smoothed(losses: Sequence[float], window: int = SMOOTHED) -> list[float]:
    """At each step the mean of the last `window` losses, or of those so far."""
    sums = [0.0, *accumulate(losses)]
    return [
        (sums[end] - sums[max(end - window, 0)]) / min(end, window) for end in range(1, len(sums))
    ]


@dataclass(frozen=True)
class Watch:
    """What is known of a run's loss so far; `after` gives what is known a step later.

    losses: the last SMOOTHED. lowest: of the smoothed losses. above: the first step of those in a
    row that are above it by MARGIN. diverged: the step at which the run did, if it has.
    """

    losses: list[float] = field(default_factory=list)
    lowest: float | None = None
    above: int | None = None
    diverged: int | None = None

    def after(self, step: int, loss: float) -> "Watch":
        """With the loss of step number `step`, counted from 1."""
        if self.diverged is not None:
            return self
        if not math.isfinite(loss):
            return replace(self, diverged=self.above or step)
        losses = [*self.losses, loss][-SMOOTHED:]
        if len(losses) < SMOOTHED:
            return replace(self, losses=losses)
        mean = sum(losses) / SMOOTHED
        lowest = mean if self.lowest is None else min(self.lowest, mean)
        above = (self.above or step) if mean >= lowest + MARGIN else None
        over = above is not None and step - above + 1 >= PATIENCE
        return Watch(losses, lowest, above, above if over else None)


def divergence(folder: Path) -> Path:
    """The file next to a run folder that says that, and how, the run diverged in a study."""
    return folder.with_name(folder.name + ".diverged")


class Diverged(Exception):
    """A run that is to end when its loss diverges has done so, and is saved."""
