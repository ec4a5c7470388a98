"""Probes of matrices, embeddings, and learned scales (by the values that the forward pass uses).

| probe | figure |
|---|---|
| `embedding_norms`, `embedding_eigenvalues`, `embedding_dots` | nGPT 4: left, middle, right |
| `condition_numbers` | nGPT 5; renormalised 11 |
| `vector_norms`, `singular_values` | nGPT 12 and 13: left, right |
| `group_norms` | anGPT E.1 |
| `gain_norms` | anGPT C.1 |
| `matrix_rank` | this project's |
| `eigen_learning_rates` | nGPT 6 left, 15 |
| `learned_scales` | nGPT 6 middle and right, 15; NormFormer 4 |
| `lambda_by_depth` | NormFormer 6 |
"""

import torch
from torch import Tensor

from unitsphere.inspection.anatomy import (
    embeddings_of,
    layers_of,
    matrices_of,
    parameters_of,
    shown,
    unless_none,
)
from unitsphere.inspection.values import (
    Values,
    condition,
    distribution,
    effective_rank,
    layers,
    singular,
    whole,
)
from unitsphere.models.parts import Scale
from unitsphere.models.trunk import Transformer
from unitsphere.ops.norm import unit_norm

MOST_ROWS = 2048
"""Rows of an embedding whose dot products are taken, evenly spread over the vocabulary."""
EIGEN = ("alpha_A", "alpha_X", "alpha_M")
"""A block's eigen learning rates, of attention, across and MLP."""


def embedding_norms(model: Transformer) -> Values:
    """Lengths of the vectors of the input and output embeddings (nGPT Figure 4, left)."""
    return distribution((name, "", E.norm(dim=1)) for name, E in embeddings_of(model).items())


def embedding_eigenvalues(model: Transformer) -> Values:
    """Eigenvalues of the embeddings' covariance, over their median (nGPT Figure 4, middle)."""
    return distribution(
        ((name, "", eigenvalues_over_median(E)) for name, E in embeddings_of(model).items()),
        logarithmic=True,
    )


def eigenvalues_over_median(E: Tensor) -> Tensor:
    """Eigenvalues, ascending, of the covariance of rows [V, d], over their median.

    V - 1 of them where that is fewer than d: V rows have no variance in more directions.
    """
    values = torch.linalg.eigvalsh(E.double().T.cov())[-(len(E) - 1) :].clamp(min=0)
    return values / values.quantile(0.5)


def embedding_dots(model: Transformer) -> Values:
    """Dot products of pairs of different embeddings (nGPT Figure 4, right).

    Of all pairs of at most MOST_ROWS rows, evenly spread over the vocabulary.
    """
    return distribution((name, "", pair_dots(E)) for name, E in embeddings_of(model).items())


def pair_dots(E: Tensor) -> Tensor:
    """⟨e_i, e_j⟩ for i < j of rows [V, d]: [pairs]."""
    rows = E[torch.linspace(0, len(E) - 1, min(len(E), MOST_ROWS)).long()].double()
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    return (rows @ rows.T)[first, second]


def condition_numbers(model: Transformer) -> Values:
    """Condition number of each matrix, of attention the median over heads (nGPT Figure 5).

    "… unit": with its vectors of length d_model renormalised, as nGPT keeps them (Figure 11).
    """
    points = []
    for m in matrices_of(model):
        vectors = m.by_head()
        for name, used in ((m.name, vectors), (f"{m.name} unit", unit_norm(vectors))):
            points.append((name, m.layer, condition(singular(used)).quantile(0.5)))
    return layers(points)


def vector_norms(model: Transformer) -> Values:
    """Lengths of the vectors of each matrix, all heads together (nGPT Figures 12, 13, left)."""
    return distribution((m.name, m.layer, m.vectors().norm(dim=1)) for m in matrices_of(model))


def singular_values(model: Transformer) -> Values:
    """Singular values of each matrix, of attention those of all heads (nGPT Figures 12, 13)."""
    return distribution(
        ((m.name, m.layer, singular(m.by_head())) for m in matrices_of(model)), logarithmic=True
    )


def matrix_rank(model: Transformer) -> Values:
    """Effective rank of each matrix as a share of the largest possible; median over heads."""
    points = []
    for m in matrices_of(model):
        values = singular(m.by_head())
        points.append((m.name, m.layer, effective_rank(values).quantile(0.5) / values.shape[-1]))
    return layers(points)


def group_norms(model: Transformer) -> Values:
    """Mean length along the input dimension (rows of W in Wx) of each matrix (anGPT Figure E.1)."""
    points = [(m.name, m.layer, m.weight().norm(dim=1).mean()) for m in matrices_of(model)]
    embeddings = embeddings_of(model).items()
    return layers([*points, *((f"{n} embedding", "", E.norm(dim=1).mean()) for n, E in embeddings)])


def gain_norms(model: Transformer) -> Values:
    """Length of each norm's gain γ, and of NormFormer's γ and λ (anGPT Figure C.1)."""
    found = [
        (shown(local), layer, whole(model.get_parameter(name)).norm())
        for name, layer, local in parameters_of(model, "gain")
    ]
    return layers(unless_none(found, "no norm of this model has a learned gain"))


def effective(scale: Scale) -> Tensor:
    """The value that a scale has in the forward pass; one entry where it is one for all."""
    value = scale.forward()  # without the hooks that hand each process its own part
    return whole(value) if isinstance(value, Tensor) else torch.tensor(value)


def eigen_learning_rates(model: Transformer) -> Values:
    """|α_A| and |α_M| (and |α_X| across) by layer (nGPT Figure 6, left, and 15)."""
    found = [
        (name, layer.label, effective(scale).abs())
        for layer in layers_of(model)
        for name in EIGEN
        if isinstance(scale := getattr(layer.block, name, None), Scale)
    ]
    why = "h is not interpolated with a sublayer's output: only nGPT and anGPT have α_A and α_M"
    return distribution(unless_none(found, why))


def learned_scales(model: Transformer) -> Values:
    """Every learned scale and gain: s_qk, s_u, s_ν, s_z, α, w, g; NormFormer's LN gains, γ and λ.

    nGPT Figure 6 (middle, right) and 15, NormFormer Figure 4.
    """
    found = [
        (shown(local), layer, used(model, name))
        for name, layer, local in parameters_of(model, "scale", "gain")
    ]
    return distribution(unless_none(found, "the model has no learned scale or gain"))


def used(model: Transformer, parameter: str) -> Tensor:
    """A scale's parameter as the forward pass uses it: of a `Scale` its effective value."""
    owner = model.get_submodule(parameter.rpartition(".")[0])
    return effective(owner) if isinstance(owner, Scale) else whole(model.get_parameter(parameter))


def lambda_by_depth(model: Transformer) -> Values:
    """Mean λ of each layer, by its number over the number of layers (NormFormer Figure 6)."""
    found = []
    for stack, name in ((model.encoder, "encoder λ"), (model.blocks, "λ")):
        for number, block in enumerate(stack or [], 1):
            gain = getattr(getattr(block, "lambda_", None), "gain", None)
            if isinstance(gain, Tensor) and stack is not None:
                found.append((name, f"{number / len(stack):.3g}", whole(gain).mean()))
    why = "no residual has a learned scale λ: NormFormer has, with model.res_scale"
    return layers(unless_none(found, why))
