"""What fine-tunings show: scores, the choice of the rate, and the document of results.json.

Accuracy, F1 and Matthews correlation; a score whose formula divides by zero is 0, as in
scikit-learn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from unitsphere.config import to_dict
from unitsphere.data.tasks import Metric
from unitsphere.errors import RunFailed
from unitsphere.finetune.data import FinetuneConfig, Parts

METRICS: tuple[Metric, ...] = ("accuracy", "f1", "matthews")


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


@dataclass(frozen=True)
class Scored:
    """Scores on one part, and the mean cross-entropy there in nats."""

    accuracy: float
    f1: float | None
    matthews: float
    loss: float


@dataclass(frozen=True)
class Tuned:
    """How a trained classifier does on the tune part: None if its loss became NaN or infinite.

    `commit` is the commit of the code which trained it: a later call may be of another.
    """

    tune: Scored | None
    seconds: float
    commit: str | None = None


def best_rate(tuned: Mapping[float, Sequence[Tuned]], metric: Metric) -> float:
    """The rate with the best mean score on the tune part; of equals, the lowest mean loss there.

    A rate at which a seed's loss became NaN or infinite is out; RunFailed if all are.
    """
    keys: dict[float, tuple[float, float]] = {}
    for lr, found in tuned.items():
        scored = [one.tune for one in found if one.tune]
        if len(scored) == len(found):
            score, loss = tune_means(scored, metric)
            keys[lr] = (score, -loss)
    if not keys:
        raise RunFailed("the loss became NaN or infinite at every rate: give a lower --lr")
    return max(keys, key=lambda lr: keys[lr])


def tune_means(found: Sequence[Scored], metric: Metric) -> tuple[float, float]:
    """Means of the deciding score and of the loss."""
    values = [getattr(one, metric) or 0.0 for one in found]
    return mean_of(values)["mean"], mean_of([one.loss for one in found])["mean"]


def edge(best: float, rates: Sequence[float]) -> str | None:
    """Which end of several rates the best is, "lowest" or "highest"; None if it is neither."""
    if len(rates) < 2 or min(rates) < best < max(rates):
        return None
    return "lowest" if best == min(rates) else "highest"


def document(
    config: FinetuneConfig,
    parts: Parts,
    tuned: Mapping[float, Sequence[Tuned]],
    best: float,
    tests: Mapping[int, Scored],
) -> dict[str, Any]:
    """All scores as plain values."""
    return {
        "task": config.task,
        "metric": config.metric,
        "start": "random" if config.scratch else "pretrained",
        "classes": parts.classes,
        "examples": parts.sizes(),
        "truncated": parts.truncated,
        "test_examples_in_training": parts.overlap(),
        "rates": [rate_document(lr, config, found) for lr, found in sorted(tuned.items())],
        "best_lr": best,
        "edge": edge(best, config.lr),
        "test": {
            "scores": {metric: mean_score(list(tests.values()), metric) for metric in METRICS},
            "majority": {"class": parts.classes[parts.majority()]} | baseline(parts),
            "seeds": [{"seed": seed} | to_dict(scored) for seed, scored in tests.items()],
        },
        "model": {"lr": best, "seed": config.seed[0]},
    }


def rate_document(lr: float, config: FinetuneConfig, found: Sequence[Tuned]) -> dict[str, Any]:
    """One rate: the deciding score's mean on the tune part, and every seed's scores."""
    scored = [one.tune for one in found if one.tune]
    seeds = zip(config.seed, found, strict=True)
    return {
        "lr": lr,
        "tune": mean_score(scored, config.metric) if len(scored) == len(found) else None,
        "tune_loss": tune_means(scored, config.metric)[1] if len(scored) == len(found) else None,
        "seeds": [{"seed": seed} | to_dict(one) for seed, one in seeds],
    }


def mean_score(found: Sequence[Scored], metric: Metric) -> Mean | None:
    """A score's mean over seeds; None for F1 of more than two classes."""
    values = [value for one in found if (value := getattr(one, metric)) is not None]
    return mean_of(values) if values else None


def baseline(parts: Parts) -> Scores:
    """Scores on the test part of always answering the class most frequent in training."""
    predicted = [parts.majority()] * len(parts.test)
    return scores(parts.test.truth, predicted, len(parts.classes))
