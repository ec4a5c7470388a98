"""Projections of stored weights onto their constraint, in place, lengths taken in fp32 or wider.

A weight may be a DTensor, spread over processes. Where each holds whole vectors, it projects its
own and nothing is communicated; where a shard cuts them, the lengths are summed over processes.
"""

import torch
from torch import Tensor

Axes = int | tuple[int, ...]
"""One axis: a matrix is a set of vectors along it. Both: the whole matrix is one vector."""


def _length(weight: Tensor, dim: Axes) -> Tensor:
    wide = torch.promote_types(weight.dtype, torch.float32)
    return _complete(torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide))


def own(weight: Tensor, dim: Axes) -> Tensor:
    """This process's part of a DTensor if that holds whole vectors along `dim`; else the tensor."""
    placements = getattr(weight, "placements", None)
    if placements is None:
        return weight
    axes = {axis % weight.dim() for axis in ((dim,) if isinstance(dim, int) else dim)}
    cut = any(p.is_partial() or getattr(p, "dim", None) in axes for p in placements)
    return weight if cut else weight.to_local()  # pyright: ignore[reportAttributeAccessIssue]


def _complete(length: Tensor) -> Tensor:
    """Lengths of which each process knows a part, summed."""
    placements = getattr(length, "placements", None)
    if placements is None:
        return length
    from torch.distributed.tensor import Replicate

    known = [Replicate() if p.is_partial() else p for p in placements]
    return length.redistribute(placements=known)  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def project_sphere_(weight: Tensor, dim: Axes, radius: float | Tensor = 1.0) -> Tensor:
    """w ← radius · w/‖w‖ for every vector along `dim` (nGPT §2.6, step 2); zero vectors stay."""
    mine = own(weight, dim)
    length = _length(mine, dim)
    mine.div_(length.masked_fill_(length == 0, 1).div_(radius))
    return weight


@torch.no_grad()
def project_ball_(weight: Tensor, dim: Axes, radius: float = 1.0) -> Tensor:
    """w ← w · min(1, radius/‖w‖) for every vector along `dim` (anGPT Table 1)."""
    mine = own(weight, dim)
    mine.div_(_length(mine, dim).div_(radius).clamp_(min=1))
    return weight


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
