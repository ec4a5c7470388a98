"""Scaling laws of one architecture: rate, batch, loss, best size and data, and the next size's.

After anGPT (arXiv 2505.22014), §5.1, §5.3, Appendices G and I. With N parameters, D training tokens
and C = 6·N·D operations of compute (Kaplan et al., arXiv 2001.08361):

    lr(N), batch(N)       the optima of the sizes (`optimum`), each trained on D = ratio·N tokens
    L(C) = A0·C^−α        the lowest losses; the paper's form, without an irreducible loss
    N_opt(C), D_opt(C)    size and data of the lowest loss at a compute (Table I.1)

All are power laws (`core.statistics.PowerLaw`). An optimum at an edge of the grid is a bound and no
optimum: the fits leave it out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from unitsphere.studies.core.statistics import Interval, PowerLaw, ZTest, fit, same_exponent

Edge = Literal["low", "high", "single"]
"""Where in its grid a lowest point is that is not within it; single: there was one point only."""


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
        """Whether it is within the grid, so that it is an optimum."""
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


def optimum(grid: Mapping[float, Mapping[float, float]]) -> Optimum:
    """The best batch and rate of one size.

    grid: batch -> rate -> loss, not finite where it diverged. Raises ValueError if all did.
    """
    by_batch = {
        batch: lowest(list(row), list(row.values()))
        for batch, row in sorted(grid.items())
        if any(map(math.isfinite, row.values()))
    }
    batches = list(by_batch)
    best = lowest(batches, [found.value for found in by_batch.values()])
    below = max(batch for batch in batches if batch <= best.at * (1 + 1e-9))
    above = min(batch for batch in batches if batch >= best.at * (1 - 1e-9))
    lr_edge = by_batch[below].edge or by_batch[above].edge
    return Optimum(
        batch=best.at,
        lr=between(batches, [found.at for found in by_batch.values()], best.at),
        loss=best.value,
        batch_edge=best.edge,
        lr_edge=lr_edge,
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


def flops(parameters: float, tokens: float) -> float:
    """C = 6·N·D: operations of training N parameters on D tokens."""
    return 6 * parameters * tokens


@dataclass(frozen=True)
class LadderSize:
    """A size of the ladder: its parameters, the tokens of each of its runs, its optimum."""

    parameters: int
    tokens: float
    optimum: Optimum


@dataclass(frozen=True)
class Allocation:
    """The best size at a compute, the tokens that leaves for it, and the loss.

    edge: whether the best size is the smallest or largest tried, None where it lies between.
    """

    compute: float
    parameters: float
    tokens: float
    loss: float
    edge: Edge | None


def allocation(compute: float, sizes: Sequence[int], losses: Sequence[float]) -> Allocation:
    """The best size at a compute, from the parameters and losses of sizes that each took it.

    The lowest point of the Akima interpolant of the loss over log N; the paper takes the best of
    the sizes as they are. Raises ValueError if every run diverged.
    """
    best = lowest(sizes, losses)
    return Allocation(compute, best.at, compute / flops(best.at, 1), best.value, best.edge)


@dataclass(frozen=True)
class Laws:
    """The laws of one architecture, None where fewer than two points are left to fit."""

    lr: PowerLaw | None
    """of parameters"""
    batch: PowerLaw | None
    """of parameters; tokens an update"""
    loss: PowerLaw | None
    """of compute"""
    parameters: PowerLaw | None
    """of compute: N_opt"""
    tokens: PowerLaw | None
    """of compute: D_opt"""


def fit_laws(sizes: Sequence[LadderSize], allocations: Sequence[Allocation] = ()) -> Laws:
    """The laws through what lies within its grid.

    The loss is the allocations' if there are any, else the one of the sizes' optima.
    """
    sizes = [size for size in sizes if size.optimum.bracketed]
    best = [found for found in allocations if found.edge is None]
    numbers = [size.parameters for size in sizes]
    computes = [found.compute for found in best]
    if allocations:
        losses = law(computes, [found.loss for found in best])
    else:
        spent = [flops(size.parameters, size.tokens) for size in sizes]
        losses = law(spent, [size.optimum.loss for size in sizes])
    return Laws(
        lr=law(numbers, [size.optimum.lr for size in sizes]),
        batch=law(numbers, [size.optimum.batch for size in sizes]),
        loss=losses,
        parameters=law(computes, [found.parameters for found in best]),
        tokens=law(computes, [found.tokens for found in best]),
    )


def law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw | None:
    """The power law through the points, None if they are fewer than two different ones."""
    return fit(xs, ys) if len(set(xs)) > 1 else None


def z_tests(a: Laws, b: Laws) -> dict[str, ZTest | None]:
    """Law -> the Z-test of its exponents in two architectures, None where one has no variance."""
    return {
        name: same_exponent(mine, other) if mine and other else None
        for (name, mine), other in zip(vars(a).items(), vars(b).values(), strict=True)
    }


@dataclass(frozen=True)
class Suggestion:
    """Rate and batch for a size, by the laws, with 95% intervals (None: from two sizes)."""

    parameters: float
    lr: float
    lr_interval: Interval | None
    batch: float
    batch_interval: Interval | None


def suggest(laws: Laws, parameters: float) -> Suggestion | None:
    """What the laws predict for a size; None where rate or batch has no law."""
    if laws.lr is None or laws.batch is None:
        return None
    return Suggestion(
        parameters,
        lr=laws.lr.at(parameters),
        lr_interval=laws.lr.interval(parameters),
        batch=laws.batch.at(parameters),
        batch_interval=laws.batch.interval(parameters),
    )
