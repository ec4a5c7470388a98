"""Gradients of a model that is spread over processes: summed once a batch, clipped by one norm.

A model's tensors may lie on several meshes (FSDP's shards, what tensor parallel cut, scalars that
are whole everywhere). torch's foreach functions take one mesh at a time: hence `by_mesh`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from unitsphere.models.trunk import Transformer
from unitsphere.ops.project import placements
from unitsphere.training.parallel.layout import Layout


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups that lie on the same mesh, ordinary ones in a group of their own."""
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


@contextmanager
def reducing(model: Transformer, loss: object, now: bool) -> Iterator[None]:
    """Within: a loss and its backward pass, whose gradients are summed over the processes `now`, or
    with those of a later one."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(loss, DistributedDataParallel) and not now:
        with loss.no_sync():
            yield
        return
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
    yield


def settle(model: Transformer, layout: Layout) -> None:
    """Once a batch is through: bring each gradient to where its weight is, summed."""
    if layout.degrees.tp > 1:
        place(model)
    reduce_scalars(model, layout)


def place(model: Transformer) -> None:
    """Sum and cut the gradients that tensor parallel leaves otherwise than their weights."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and placements(gradient) != placements(parameter):
            parameter.grad = gradient.redistribute(  # pyright: ignore[reportAttributeAccessIssue]
                placements=placements(parameter)
            )


def reduce_scalars(model: Transformer, layout: Layout) -> None:
    """Sum the gradients that FSDP leaves alone, those of scalars, over the parts of the batch."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return
    found = [p.grad for p in model.parameters() if p.dim() == 0 and p.grad is not None]
    if found:
        for gradient, total in zip(found, layout.sum_(torch.stack(found)), strict=True):
            gradient.copy_(total)


@torch.no_grad()
def clip(model: Transformer, limit: float) -> Tensor:
    """Scale all gradients so that their norm, as one vector over all processes, is at most `limit`.

    Returns the norm before that, a plain tensor that is the same in every process.
    """
    groups = by_mesh(p for p in model.parameters() if p.grad is not None)
    if len(groups) == 1 and not hasattr(groups[0][0], "device_mesh"):
        return clip_grad_norm_(groups[0], limit)
    norms = [whole(get_total_norm(gradients(group))) for group in groups]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        clip_grads_with_norm_(group, limit, norm)
    return norm


def gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those that are there."""
    return [p.grad for p in parameters if p.grad is not None]


def whole(tensor: Tensor) -> Tensor:
    """A DTensor's value; any other tensor itself."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()
