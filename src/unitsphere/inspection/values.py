"""The two forms of what a probe finds, as plain values for JSON, and the mathematics of probes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unitsphere.ops import dtensor

Series = dict[str, Any]
"""One series of either form."""
Values = dict[str, Series]
"""Series by name: what a probe returns."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BINS = 41
"""Of a histogram at most; fewer for fewer values. Odd: equal values fill the middle bin."""
DIGITS = 6


class DoesNotApply(Exception):
    """A probe has nothing to show of a model; says why."""


def number(value: float) -> float | None:
    """A value as JSON has it: with DIGITS significant digits, or None if it is not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def numbers(values: Iterable[float] | Tensor) -> list[float | None]:
    """`number` of each."""
    found = values.double().tolist() if isinstance(values, Tensor) else values
    return [number(value) for value in found]


def layers(points: Iterable[tuple[str, str, float | Tensor]]) -> Values:
    """The form "layers" of (series, label, value); the order is that in which they come."""
    found: Values = {}
    for name, label, value in points:
        series = found.setdefault(name, {"labels": [], "values": []})
        series["labels"].append(label)
        series["values"].append(number(float(value)))
    return found


def distribution(samples: Iterable[tuple[str, str, Tensor]], logarithmic: bool = False) -> Values:
    """The form "distribution" of (series, label, values of any shape).

    logarithmic: bins of the same ratio, over what is positive.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, label, values in samples:
        found.setdefault(name, {})[label] = values.detach().double().flatten().cpu()
    return {name: described(by_label, logarithmic) for name, by_label in found.items()}


def described(by_label: Mapping[str, Tensor], logarithmic: bool) -> Series:
    """One series: means and quantiles of each label, a histogram of all."""
    edges, counts = histogram(torch.cat(list(by_label.values())), logarithmic)
    return {
        "labels": list(by_label),
        "means": [number(float(values.mean())) for values in by_label.values()],
        "quantiles": [quantiles(values) for values in by_label.values()],
        "edges": edges,
        "counts": counts,
    }


def quantiles(values: Tensor) -> list[float | None]:
    """The QUANTILES of finite values [n], interpolated."""
    finite = values[values.isfinite()].sort().values
    if not len(finite):
        return [None] * len(QUANTILES)
    places = torch.tensor(QUANTILES, dtype=torch.float64) * (len(finite) - 1)
    low = finite[places.floor().long()]
    return numbers(torch.lerp(low, finite[places.ceil().long()], places.frac()))


def histogram(values: Tensor, logarithmic: bool) -> tuple[list[float | None], list[int]]:
    """Edges and counts of finite values [n]; bins narrower than DIGITS show are made wider."""
    kept = values[values.isfinite()]
    if logarithmic:
        kept = kept[kept > 0].log10()
    if not len(kept):
        return [], []
    low, high = float(kept.min()), float(kept.max())
    bins = max(min(2 * int(len(kept) ** 0.5 / 2) + 1, BINS), 11)
    if (high - low) / bins < 10.0 ** (1 - DIGITS) * max(abs(low), abs(high), 1.0):
        low, high = low - 0.05 * max(abs(low), 1.0), high + 0.05 * max(abs(high), 1.0)
    counts, edges = torch.histogram(kept, bins, range=(low, high))
    if logarithmic:
        edges = 10**edges
    return numbers(edges), [int(count) for count in counts.tolist()]


def flat(values: Values) -> dict[str, float]:
    """`<series>/<label>` -> its value or mean, of either form; what is not finite is left out."""
    found: dict[str, float] = {}
    for name, series in values.items():
        heights: Sequence[float | None] = series.get("values", series.get("means", []))
        for label, value in zip(series["labels"], heights, strict=True):
            if value is not None:
                found[f"{name}/{label or 'all'}"] = value
    return found


def whole(tensor: Tensor) -> Tensor:
    """A tensor without its graph, gathered if it is spread over processes."""
    return dtensor.whole(tensor.detach())


def singular(matrices: Tensor) -> Tensor:
    """Singular values of [..., n, m], descending, in double precision: [..., min(n, m)]."""
    return torch.linalg.svdvals(matrices.double())


def condition(values: Tensor) -> Tensor:
    """Largest over smallest of singular values [..., n]; infinite for a singular matrix."""
    return values[..., 0] / values[..., -1]


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of singular values [..., n] as shares of their sum (Roy & Vetterli 2007).

    n for equal ones, 1 for a single one that is not 0.
    """
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p along the last axis, in nats."""
    return torch.special.entr(probabilities.float()).sum(-1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle in degrees between vectors along the last axis; exact for small ones too.

    2·atan2(‖â − b̂‖, ‖â + b̂‖) (Kahan): the cosine of a small angle is rounded to 1. A vector
    without a direction gives NaN.
    """
    a, b = a.double(), b.double()
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    half = torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))
    return torch.rad2deg(2 * half)
