"""Projections of stored weights onto their constraint, in place, lengths taken in fp32 or wider."""

import torch
from torch import Tensor

Axes = int | tuple[int, ...]
"""One axis: a matrix is a set of vectors along it. Both: the whole matrix is one vector."""


def _length(weight: Tensor, dim: Axes) -> Tensor:
    wide = torch.promote_types(weight.dtype, torch.float32)
    return torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)


@torch.no_grad()
def project_sphere_(weight: Tensor, dim: Axes, radius: float | Tensor = 1.0) -> Tensor:
    """w ← radius · w/‖w‖ for every vector along `dim` (nGPT §2.6, step 2); zero vectors stay."""
    length = _length(weight, dim)
    return weight.mul_(radius / length.masked_fill_(length == 0, 1))


@torch.no_grad()
def project_ball_(weight: Tensor, dim: Axes, radius: float = 1.0) -> Tensor:
    """w ← w · min(1, radius/‖w‖) for every vector along `dim` (anGPT Table 1)."""
    return weight.mul_((radius / _length(weight, dim)).clamp_(max=1))


@torch.no_grad()
def project_tangent_(gradient: Tensor, weight: Tensor, dim: Axes) -> Tensor:
    """g ← g − w⟨w, g⟩/⟨w, w⟩ for every vector along `dim`: the part that turns w (nGPT A.4).

    The gradient of a zero vector stays.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    w = weight.to(wide)
    square = w.square().sum(dim, keepdim=True)
    share = (w * gradient).sum(dim, keepdim=True) / square.masked_fill_(square == 0, 1)
    return gradient.sub_(w.mul(share).to(gradient.dtype))


PROJECTIONS = {"sphere": project_sphere_, "ball": project_ball_}
"""The projections by the constraint's kind."""
