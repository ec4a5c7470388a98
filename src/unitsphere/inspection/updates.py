"""Probes of gradients, of an optimizer's moments, and of how far an update turns the weights.

| probe | figure |
|---|---|
| `second_fc_gradients` | NormFormer 3 |
| `gradient_norms`, `gradient_ratio`, `mean_gradient_ratio` | NormFormer 7 |
| `mean_gradients_by_layer` | NormFormer 3, over the steps and the last layer |
| `moment_variance`, `relative_variance` | anGPT B.1 |
| `angular_updates` | this project's |

Gradients and moments are dicts by the parameter's full name, shaped as the parameter is stored.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.inspection.anatomy import (
    Matrix,
    matrices_of,
    parameters_of,
    second_matrices,
    shown,
    unless_none,
)
from unitsphere.inspection.values import DoesNotApply, Series, Values, angle, layers, number, whole
from unitsphere.models.constraint import MATRICES, declarations
from unitsphere.models.trunk import Transformer

ByName = Mapping[str, Tensor]
NOTHING_SHARED = "the two models have no layer in common"


class Gradients(NamedTuple):
    """The gradient of a batch's mean loss by parameter, and that loss in nats."""

    by_name: dict[str, Tensor]
    loss: float


def gradients_of(model: Transformer, batch: Batch) -> Gradients:
    """The gradients on a batch, in eval mode; nothing is left in the parameters' `grad`."""
    named = dict(model.named_parameters())
    before = {name: parameter.requires_grad for name, parameter in named.items()}
    training = model.training
    try:
        model.eval().requires_grad_(True)
        with torch.enable_grad():
            loss = model.loss(batch.inputs, batch.targets, **batch.keywords())
            found = torch.autograd.grad(loss, list(named.values()))
    finally:
        model.train(training)
        for name, parameter in named.items():
            parameter.requires_grad_(before[name])
    return Gradients(dict(zip(named, found, strict=True)), float(loss.detach()))


def second_fc_gradients(model: Transformer, gradients: ByName) -> Values:
    """‖∂L/∂W‖₁ of the MLP's output matrix of each layer (NormFormer Figure 3)."""
    return layers(
        (m.name, m.layer, whole(gradients[m.parameter]).float().abs().sum())
        for m in second_matrices(model)
    )


def gradient_norms(model: Transformer, gradients: ByName) -> Values:
    """‖∂L/∂W‖₂ of each matrix: what Figure 7 of NormFormer compares."""
    return layers(
        (m.name, m.layer, whole(gradients[m.parameter]).float().norm()) for m in matrices_of(model)
    )


def gradient_ratio(
    model: Transformer, gradients: Gradients, base: Transformer, base_gradients: Gradients
) -> Values:
    """Gradient norms over those of another run's model, each over its own loss (NormFormer 7).

    2 means twice as large as the baseline's. Matrices meet by layer and by their place in the
    sublayer, not by name: W_d of anGPT meets W_oMLP of nGPT. Raises DoesNotApply unless some do.
    """
    points = []
    for m, other in pairs(model, base):
        own = gradients.by_name[m.parameter].norm() / gradients.loss
        theirs = base_gradients.by_name[other.parameter].norm() / base_gradients.loss
        points.append((m.name, m.layer, own / theirs))
    return layers(unless_none(points, NOTHING_SHARED))


def pairs(model: Transformer, base: Transformer) -> Iterator[tuple[Matrix, Matrix]]:
    """The matrices of two models that meet: of one layer, and one place in the sublayer."""
    places = {(m.layer, m.sublayer, m.place, m.order): m for m in matrices_of(base)}
    for m in matrices_of(model):
        if other := places.get((m.layer, m.sublayer, m.place, m.order)):
            yield m, other


class Recorded(NamedTuple):
    """What a run recorded while it trained: the loss in nats and its live probes, by step."""

    losses: Mapping[int, float]
    probes: Mapping[str, Mapping[int, Values]]

    def mean(self, probe: str, steps: Iterable[int]) -> dict[tuple[str, str], float]:
        """(series, label) -> the mean over the steps of a probe's value over the loss."""
        found: dict[tuple[str, str], list[float]] = {}
        for step in steps:
            for name, label, value in points_of(self.probes[probe][step]):
                found.setdefault((name, label), []).append(value / self.losses[step])
        return {key: sum(values) / len(values) for key, values in found.items()}

    def steps(self, probe: str, after: int, last: int) -> list[int]:
        """The steps after `after` up to `last` at which a probe and the loss are on record."""
        known = self.probes.get(probe, {})
        return [step for step in known if after < step <= last and step in self.losses]


def mean_gradients_by_layer(recorded: Recorded, after: int, last: int) -> Values:
    """Mean over the recorded steps of ‖∂L/∂W‖₁ of each layer's MLP output matrix.

    Each over its loss, and over the mean of the last layer. Raises DoesNotApply without a record.
    """
    steps = recorded.steps("second_fc_gradients", after, last)
    means = recorded.mean("second_fc_gradients", steps)
    if not means:
        raise DoesNotApply("the run recorded no second_fc_gradients since the checkpoint before")
    ends = {name: value for (name, _), value in means.items()}
    return layers((n, label, quotient(value, ends[n])) for (n, label), value in means.items())


def quotient(a: float, b: float) -> float:
    """a/b; NaN where b is 0."""
    return a / b if b else math.nan


def mean_gradient_ratio(
    model: Transformer,
    recorded: Recorded,
    base: Transformer,
    base_recorded: Recorded,
    after: int,
    last: int,
) -> Values:
    """Mean gradient norms over those of another run, each over its loss (NormFormer Figure 7).

    The means are over the steps that both runs recorded after step `after` up to `last`. Matrices
    meet as in `gradient_ratio`. Raises DoesNotApply without a step, or a layer, in common.
    """
    shared = set(base_recorded.steps("gradient_norms", after, last))
    steps = [s for s in recorded.steps("gradient_norms", after, last) if s in shared]
    if not steps:
        raise DoesNotApply(
            "the two runs recorded gradient_norms at no step in common since the checkpoint "
            "before: train both with --inspect.probes gradient_norms"
        )
    own, theirs = (each.mean("gradient_norms", steps) for each in (recorded, base_recorded))
    points = [
        (m.name, m.layer, quotient(own[m.name, m.layer], theirs[other.name, other.layer]))
        for m, other in pairs(model, base)
        if (m.name, m.layer) in own and (other.name, other.layer) in theirs
    ]
    return layers(unless_none(points, NOTHING_SHARED))


def moment_variance(model: Transformer, moments: ByName) -> Values:
    """Variance over the entries of Adam's first moment m_t of each matrix (anGPT Figure B.1).

    Matrices that Adam does not train have none.
    """
    points = [
        (m.name, m.layer, whole(moments[m.parameter]).double().var(correction=0))
        for m in matrices_of(model)
        if m.parameter in moments
    ]
    why = "Adam has no first moment of any layer's matrix (Muon, or no step yet)"
    return layers(unless_none(points, why))


def relative_variance(history: Sequence[Values]) -> list[Values]:
    """Each value divided by its sum over all steps, as anGPT's Figure B.1 draws them."""
    totals: dict[tuple[str, str], float] = {}
    for values in history:
        for name, label, value in points_of(values):
            totals[name, label] = totals.get((name, label), 0.0) + value
    return [
        {name: of_total(name, series, totals) for name, series in values.items()}
        for values in history
    ]


def points_of(values: Values) -> list[tuple[str, str, float]]:
    """(series, label, value) of the form "layers", without what is not finite."""
    return [
        (name, label, value)
        for name, series in values.items()
        for label, value in zip(series["labels"], series["values"], strict=True)
        if value is not None
    ]


def of_total(name: str, series: Series, totals: Mapping[tuple[str, str], float]) -> Series:
    """A series over the totals of its labels."""
    shares = []
    for label, value in zip(series["labels"], series["values"], strict=True):
        total = totals.get((name, label), 0.0)
        shares.append(number(value / total) if value is not None and total else None)
    return {"labels": series["labels"], "values": shares}


def angular_updates(model: Transformer, before: ByName, after: ByName, steps: int = 1) -> Values:
    """Mean angle in degrees per step by which the vectors of each matrix turned, of `steps` steps.

    Vectors are those that the model declares bounded; of a free matrix its rows. Over several steps
    it is the angle between the two ends over their number, less than what each step turned.
    """
    points, declared = [], declarations(model)
    for name, layer, local in parameters_of(model, *MATRICES):
        bound = declared[name].bound
        dim = -1 if bound is None else bound.dim
        ends = (whole(weights[name]).movedim(dim, -1) for weights in (before, after))
        turned = angle(*ends).nanmean() / steps
        points.append((shown(local), layer, turned))
    return layers(points)
