"""The best batch and learning rate of a size, from a grid of runs, by two-stage interpolation.

anGPT's Appendix G (arXiv 2505.22014), after Porian et al. (arXiv 2406.19146): Akima interpolants,

1. for each batch, of the loss over the logarithm of the rate: its lowest point is the batch's rate;
2. of those lowest losses over the logarithm of the batch: their lowest point is the size's batch,

and of the batches' rates over the batch, whose value there is the size's rate. Nothing is read
outside the grid. A lowest point that is at the grid's edge is no optimum, but a bound: it says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.interpolate import Akima1DInterpolator

Edge = Literal["low", "high", "single"]
"""Where in its grid a lowest point is that is not within it; single: there was one point only."""


@dataclass(frozen=True)
class Trial:
    """A run of the grid: tokens an update, peak rate, loss; not finite if it diverged."""

    batch: float
    lr: float
    loss: float


@dataclass(frozen=True)
class Lowest:
    """The lowest point of an interpolant: where, how low, and at which edge if at one."""

    at: float
    value: float
    edge: Edge | None


@dataclass(frozen=True)
class Optimum:
    """The best batch and rate of a size, the loss there, and what was found for each batch.

    batch_edge, lr_edge: at which edge of the grid it is, None where it is within.
    """

    batch: float
    lr: float
    loss: float
    batch_edge: Edge | None
    lr_edge: Edge | None
    by_batch: dict[float, Lowest]

    @property
    def bracketed(self) -> bool:
        """Whether it lies within the grid, so that it is an optimum."""
        return self.batch_edge is None and self.lr_edge is None


def lowest(xs: Sequence[float], ys: Sequence[float]) -> Lowest:
    """The lowest point of the Akima interpolant of `ys` over log `xs`, within the given points.

    Points whose y is not finite are left out; of fewer than three the lowest is taken as it is.
    Raises ValueError if no finite one is left.
    """
    points = sorted((math.log(x), y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y))
    if not points:
        raise ValueError("there is no finite value to find the lowest of")
    x, y = (np.array(column) for column in zip(*points, strict=True))
    if len(points) >= 3:
        curve = Akima1DInterpolator(x, y)
        level = curve.derivative().roots(extrapolate=False)
        level = level[np.isfinite(level)]  # an interval that is level throughout gives NaN
        found_x, found_y = np.append(x, level), np.append(y, curve(level))
    else:
        found_x, found_y = x, y
    place = int(np.argmin(found_y))
    edge: Edge | None = "low" if found_x[place] == x[0] else None
    edge = "high" if found_x[place] == x[-1] else edge
    edge = "single" if len(points) == 1 else edge
    return Lowest(float(np.exp(found_x[place])), float(found_y[place]), edge)


def optimum(trials: Sequence[Trial]) -> Optimum:
    """The best batch and rate of one size; seeds of the same batch and rate count by their mean.

    Raises ValueError if every run diverged.
    """
    grid: dict[float, dict[float, list[float]]] = {}
    for trial in trials:
        grid.setdefault(trial.batch, {}).setdefault(trial.lr, []).append(trial.loss)
    by_batch = {}
    for batch, row in sorted(grid.items()):
        means = [float(np.mean(losses)) for losses in row.values()]
        if any(map(math.isfinite, means)):
            by_batch[batch] = lowest(list(row), means)
    batches = list(by_batch)
    best = lowest(batches, [found.value for found in by_batch.values()])
    below = max(batch for batch in batches if batch <= best.at * (1 + 1e-9))
    above = min(batch for batch in batches if batch >= best.at * (1 - 1e-9))
    edges = [by_batch[batch].edge for batch in (below, above) if by_batch[batch].edge]
    return Optimum(
        batch=best.at,
        lr=between(batches, [found.at for found in by_batch.values()], best.at),
        loss=best.value,
        batch_edge=best.edge,
        lr_edge=edges[0] if edges else None,
        by_batch=by_batch,
    )


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """The value at `x` of the Akima interpolant of log `ys` over ascending log `xs`.

    `x` must be within `xs`; of fewer than three points the interpolant is a straight line.
    """
    log_x, log_y = np.log(xs), np.log(ys)
    at = min(max(math.log(x), log_x[0]), log_x[-1])
    if len(log_x) < 3:
        return float(np.exp(np.interp(at, log_x, log_y)))
    return float(np.exp(Akima1DInterpolator(log_x, log_y)(at)))
