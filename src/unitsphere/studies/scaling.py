"""Scaling laws of one architecture: rate, batch, loss, best size and data, and the next size's.

After anGPT (arXiv 2505.22014), §5.1, §5.3, Appendices G and I. With N parameters, D training tokens
and C = 6·N·D operations of compute (Kaplan et al., arXiv 2001.08361):

    lr(N), batch(N)       the optima of the sizes (optima.py), each trained on D = ratio·N tokens
    L(C) = A0·C^−α        the lowest losses; the paper's form, without an irreducible loss
    N_opt(C), D_opt(C)    size and data of the lowest loss at a compute (Table I.1)

All are power laws (powerlaw.py). What lies at an edge of what was tried is a bound and no optimum:
the fits leave it out.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from unitsphere.studies.optima import Edge, Optimum, lowest
from unitsphere.studies.powerlaw import Interval, PowerLaw, ZTest, fit, same_exponent


def flops(parameters: float, tokens: float) -> float:
    """C = 6·N·D: operations of training N parameters on D tokens."""
    return 6 * parameters * tokens


@dataclass(frozen=True)
class Size:
    """A size of the ladder: its parameters, the tokens of each of its runs, its optimum."""

    parameters: int
    tokens: float
    optimum: Optimum


@dataclass(frozen=True)
class Trained:
    """A run of a size at its best batch and rate: parameters, training tokens, loss."""

    parameters: int
    tokens: float
    loss: float


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


def allocation(compute: float, runs: Sequence[Trained]) -> Allocation:
    """The best size at a compute, from runs of several sizes that each took it.

    The lowest point of the Akima interpolant of the loss over log N; the paper takes the best of
    the sizes as they are. Raises ValueError if every run diverged.
    """
    best = lowest([run.parameters for run in runs], [run.loss for run in runs])
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


def fit_laws(sizes: Sequence[Size], allocations: Sequence[Allocation] = ()) -> Laws:
    """The laws through what lies within its grid.

    The loss is that of the allocations if there are any, else that of the sizes' optima.
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
    found: dict[str, ZTest | None] = {}
    for name in (field.name for field in dataclasses.fields(Laws)):
        mine, other = getattr(a, name), getattr(b, name)
        found[name] = same_exponent(mine, other) if mine and other else None
    return found


@dataclass(frozen=True)
class Suggestion:
    """Rate and batch for a size, by the laws, with 95% intervals (None: from two sizes)."""

    parameters: float
    lr: float
    lr_interval: Interval | None
    batch: float
    batch_interval: Interval | None


def suggest(laws: Laws, parameters: float) -> Suggestion | None:
    """What the laws say of a size; None where rate or batch has no law."""
    if laws.lr is None or laws.batch is None:
        return None
    return Suggestion(
        parameters,
        lr=laws.lr.at(parameters),
        lr_interval=laws.lr.interval(parameters),
        batch=laws.batch.at(parameters),
        batch_interval=laws.batch.interval(parameters),
    )
