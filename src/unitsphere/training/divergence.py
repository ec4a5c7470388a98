"""When a loss has diverged: for runs that are to end there (`train.stop_at_divergence`).

The smoothed loss is the mean of the last WINDOW steps' losses. A run has diverged

- when the smoothed loss has been above its lowest so far by MARGIN or more for PATIENCE steps in a
  row: at the first of these;
- when its loss or the norm of its gradient is not finite: at that step, or at the first of those
  just before it that were above by MARGIN.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

WINDOW = 10
"""Steps over which the loss is smoothed."""
MARGIN = 1.0
"""Nats by which the smoothed loss is above its lowest."""
PATIENCE = 20
"""Steps in a row for which it is; more than WINDOW, so that a single spike is not enough."""


@dataclass(frozen=True)
class Watch:
    """What is known of a run's loss so far; `after` gives what is known a step later.

    losses: the last WINDOW. lowest: of the smoothed losses. above: the first step of those in a
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
        losses = [*self.losses, loss][-WINDOW:]
        if len(losses) < WINDOW:
            return replace(self, losses=losses)
        smoothed = sum(losses) / WINDOW
        lowest = smoothed if self.lowest is None else min(self.lowest, smoothed)
        above = (self.above or step) if smoothed >= lowest + MARGIN else None
        over = above is not None and step - above + 1 >= PATIENCE
        return Watch(losses, lowest, above, above if over else None)


def divergence(folder: Path) -> Path:
    """The file beside a run folder that says that, and how, the run diverged in a study."""
    return folder.with_name(folder.name + ".diverged")


class Diverged(Exception):
    """A run that is to end when its loss diverges has done so, and is saved."""
