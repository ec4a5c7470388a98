"""Projections of stored weights onto their constraint, in place, lengths taken in fp32 or wider.

A weight may be a DTensor, spread over processes. Where each holds whole vectors, it projects its
own and nothing is communicated; where a shard cuts them, the lengths are summed over processes.
"""

import torch
from torch import Tensor

from unitsphere.ops.dtensor import Axes, complete, is_cut, local, placements

NO_LENGTH = 1e-30  # vectors no longer than this count as zero


def length(weight: Tensor, dim: Axes) -> Tensor:
    """‖w‖ for every vector along `dim`, that axis kept with size 1; of those held here."""
    if not placements(weight):  # the usual case, and small matrices wait for Python
        return _norm(weight, dim)
    if not is_cut(weight, dim):
        return _norm(local(weight), dim)
    wide = torch.promote_types(weight.dtype, torch.float32)
    return local(complete(torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)))


def _norm(weight: Tensor, dim: Axes) -> Tensor:
    """`length` of an ordinary tensor."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if dim == 0 and weight.device.type == "cpu":  # where vector_norm takes 5 to 10 times as long
        return weight.to(wide).square().sum(0, keepdim=True).sqrt_()
    return torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)


@torch.no_grad()
def project_sphere_(weight: Tensor, dim: Axes, radius: float | Tensor = 1.0) -> Tensor:
    """w ← radius · w/‖w‖ for every vector along `dim` (nGPT §2.6, step 2); zero vectors stay."""
    factor = length(weight, dim).clamp_(min=NO_LENGTH).reciprocal_().mul_(radius)
    local(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_ball_(weight: Tensor, dim: Axes, radius: float = 1.0) -> Tensor:
    """w ← w · min(1, radius/‖w‖) for every vector along `dim` (anGPT §4.2)."""
    factor = length(weight, dim).reciprocal_().mul_(radius).clamp_(max=1)
    local(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_tangent_(gradient: Tensor, weight: Tensor, dim: Axes) -> Tensor:
    """g ← g − w⟨w, g⟩/⟨w, w⟩ for every vector along `dim`: the part that turns w.

    This is the project's own, not a paper's. The gradient of a zero vector stays.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    w = weight.to(wide)
    square = local(complete(w.square().sum(dim, keepdim=True)))
    share = local(complete((w * gradient).sum(dim, keepdim=True))) / square.masked_fill_(
        square == 0, 1
    )
    local(gradient).sub_(local(w).mul(share).to(gradient.dtype))
    return gradient


PROJECTIONS = {"sphere": project_sphere_, "ball": project_ball_}
"""The projections by the constraint's kind."""
