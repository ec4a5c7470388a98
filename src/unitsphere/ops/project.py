"""Projections of stored weights onto their constraint, in place, lengths taken in fp32 or wider.

A weight may be a DTensor, spread over processes. Where each holds whole vectors, it projects its
own and nothing is communicated; where a shard cuts them, the lengths are summed over processes.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

NO_LENGTH = 1e-30  # vectors no longer than this count as zero

Axes = int | tuple[int, ...]
"""One axis: a matrix is a set of vectors along it. Both: the whole matrix is one vector."""


def length(weight: Tensor, dim: Axes) -> Tensor:
    """‖w‖ for every vector along `dim`, that axis kept with size 1; of the vectors held `own`."""
    if not placements(weight):  # the usual case, and small matrices wait for Python
        return _norm(weight, dim)
    if not is_cut(weight, dim):
        return _norm(own(weight), dim)
    wide = torch.promote_types(weight.dtype, torch.float32)
    return own(_complete(torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)))


def _norm(weight: Tensor, dim: Axes) -> Tensor:
    """`length` of an ordinary tensor."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if dim == 0 and weight.device.type == "cpu":  # where vector_norm takes 5 to 10 times as long
        return weight.to(wide).square().sum(0, keepdim=True).sqrt_()
    return torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=wide)


def own(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process holds; an ordinary tensor itself."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def is_cut(weight: Tensor, dim: Axes) -> bool:
    """Whether vectors of the weight along `dim` are spread over several processes."""
    axes = {axis % weight.dim() for axis in ((dim,) if isinstance(dim, int) else dim)}
    return any(p.is_partial() or getattr(p, "dim", None) in axes for p in placements(weight))


def placements(tensor: Tensor) -> Sequence[Any]:
    """Where the parts of a DTensor are; nothing for an ordinary tensor."""
    return getattr(tensor, "placements", ())


def _complete(sums: Tensor) -> Tensor:
    """A DTensor whose terms several processes have, summed; any other tensor itself."""
    if not any(p.is_partial() for p in placements(sums)):
        return sums
    from torch.distributed.tensor import Replicate

    known = [Replicate() if p.is_partial() else p for p in placements(sums)]
    return sums.redistribute(placements=known)  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def project_sphere_(weight: Tensor, dim: Axes, radius: float | Tensor = 1.0) -> Tensor:
    """w ← radius · w/‖w‖ for every vector along `dim` (nGPT §2.6, step 2); zero vectors stay."""
    factor = length(weight, dim).clamp_(min=NO_LENGTH).reciprocal_().mul_(radius)
    own(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_ball_(weight: Tensor, dim: Axes, radius: float = 1.0) -> Tensor:
    """w ← w · min(1, radius/‖w‖) for every vector along `dim` (anGPT §4.2)."""
    factor = length(weight, dim).reciprocal_().mul_(radius).clamp_(max=1)
    own(weight).mul_(factor)
    return weight


@torch.no_grad()
def project_tangent_(gradient: Tensor, weight: Tensor, dim: Axes) -> Tensor:
    """g ← g − w⟨w, g⟩/⟨w, w⟩ for every vector along `dim`: the part that turns w.

    This is the project's own, not a paper's. The gradient of a zero vector stays.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    w = weight.to(wide)
    square = own(_complete(w.square().sum(dim, keepdim=True)))
    share = own(_complete((w * gradient).sum(dim, keepdim=True))) / square.masked_fill_(
        square == 0, 1
    )
    own(gradient).sub_(own(w).mul(share).to(gradient.dtype))
    return gradient


PROJECTIONS = {"sphere": project_sphere_, "ball": project_ball_}
"""The projections by the constraint's kind."""


@torch.no_grad()
def adam_project_(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    kind: Literal["sphere", "ball"],
    dim: int,
    radius: float = 1.0,
    decoupled: bool = False,
    shadow: Tensor | None = None,
) -> Tensor:
    """One step of Adam on a weight [out, in], then its projection along `dim`; both in place.

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  w ← w − lr·m̂/(√v̂ + eps), m̂ = m/(1−β₁ⁿ) and
    v̂ = v/(1−β₂ⁿ) (Kingma & Ba 2015, Algorithm 1), as `torch.optim.Adam` computes it; then every
    vector of w along `dim` is put at the length `radius` (sphere) or at most there (ball).

    `exp_avg` m and `exp_avg_sq` v, shaped as the weight, and `step` n, a scalar tensor that counts
    this step too, are torch's state of the same names. `weight_decay` λ adds λw to the gradient
    (Adam) or, if `decoupled`, first takes w ← w − lr·λw (AdamW). `shadow`, a tensor shaped as the
    weight in a narrower dtype, receives a rounded copy. Returns the weight.
    """
    if weight_decay and not decoupled:
        gradient = gradient + weight_decay * weight
    elif weight_decay:
        weight.mul_(1 - lr * weight_decay)
    beta1, beta2 = betas
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    n = step.item()
    length = (exp_avg_sq / (1 - beta2**n)).sqrt_().add_(eps)
    weight.addcdiv_(exp_avg, length, value=-lr / (1 - beta1**n))
    PROJECTIONS[kind](weight, dim, radius)
    if shadow is not None:
        shadow.copy_(weight)
    return weight
