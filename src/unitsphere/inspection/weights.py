"""Probes of matrices and embeddings.

| probe | figure |
|---|---|
| `embedding_norms`, `embedding_eigenvalues`, `embedding_dots` | nGPT 4: left, middle, right |
| `condition_numbers` | nGPT 5; renormalised 11 |
| `vector_norms`, `singular_values` | nGPT 12 and 13: left, right |
| `group_norms` | anGPT E.1 |
| `gain_norms` | anGPT C.1 |
| `matrix_rank` | this project's |
"""

import torch
from torch import Tensor

from unitsphere.inspection.anatomy import (
    embeddings_of,
    matrices_of,
    parameters_of,
    shown,
    unless_none,
)
from unitsphere.inspection.measures import condition, effective_rank, singular
from unitsphere.inspection.values import Values, distribution, layers, whole
from unitsphere.models.trunk import Transformer
from unitsphere.ops.norm import unit_norm

MOST_ROWS = 2048
"""Rows of an embedding whose dot products are taken, evenly spread over the vocabulary."""


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
    """Eigenvalues [d], ascending, of the covariance of rows [V, d], over their median."""
    values = torch.linalg.eigvalsh(E.double().T.cov()).clamp(min=0)
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
        (shown(local) if layer else shown(name), layer, whole(model.get_parameter(name)).norm())
        for name, layer, local in parameters_of(model, "gain")
    ]
    return layers(unless_none(found, "no norm of this model has a learned gain"))
