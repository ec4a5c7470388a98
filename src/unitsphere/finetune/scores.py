"""Scores of a classification: accuracy, F1 and Matthews correlation, and means over seeds.

A score whose formula divides by zero is 0, as in scikit-learn.
"""

import math
from collections.abc import Sequence
from typing import TypedDict


class Scores(TypedDict):
    """Accuracy, F1 of class 1 (only of two classes, else None), Matthews correlation."""

    accuracy: float
    f1: float | None
    matthews: float


def scores(truth: Sequence[int], predicted: Sequence[int], classes: int) -> Scores:
    """All scores of predicted class indices against the true ones."""
    return Scores(
        accuracy=accuracy(truth, predicted),
        f1=f1(truth, predicted) if classes == 2 else None,
        matthews=matthews(truth, predicted, classes),
    )


def accuracy(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Share of examples that are predicted right."""
    return sum(t == p for t, p in zip(truth, predicted, strict=True)) / len(truth)


def f1(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Harmonic mean of precision and recall of class 1: 2·TP/(2·TP + FP + FN)."""
    hits = sum(t == p == 1 for t, p in zip(truth, predicted, strict=True))
    claimed = sum(p == 1 for p in predicted) + sum(t == 1 for t in truth)
    return 2 * hits / claimed if claimed else 0.0


def matthews(truth: Sequence[int], predicted: Sequence[int], classes: int = 2) -> float:
    """Matthews correlation, for any number of classes (Gorodkin 2004, R_K).

    (c·n − Σ t_k p_k)/√((n² − Σ p_k²)(n² − Σ t_k²)) with c right ones of n, and t_k, p_k the
    number of examples of class k and of predictions of it.
    """
    n = len(truth)
    right = sum(t == p for t, p in zip(truth, predicted, strict=True))
    t = [sum(one == k for one in truth) for k in range(classes)]
    p = [sum(one == k for one in predicted) for k in range(classes)]
    covariance = right * n - sum(a * b for a, b in zip(t, p, strict=True))
    spread = (n * n - sum(b * b for b in p)) * (n * n - sum(a * a for a in t))
    return covariance / math.sqrt(spread) if spread else 0.0


class Mean(TypedDict):
    """Mean over seeds and its standard error (None for one seed)."""

    mean: float
    standard_error: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """Mean, and s/√n with s the sample's standard deviation."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Mean(mean=mean, standard_error=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Mean(mean=mean, standard_error=math.sqrt(variance / n))
