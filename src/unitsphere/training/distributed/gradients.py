"""Gradients of a model that is spread over processes: summed once a batch, clipped by one norm.

A model's tensors may be on several meshes (FSDP's shards, what tensor parallel cut, gains that
are whole everywhere). torch's foreach functions take one mesh at a time, so `by_mesh` groups them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import by_mesh, local, placements, whole
from unitsphere.training.distributed.layout import Layout


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


def reduce_gradients(model: Transformer, layout: Layout) -> None:
    """Once a batch is through: bring each gradient to where its weight is, summed."""
    if layout.degrees.tp > 1:
        redistribute(model)
    reduce_small(model, layout)


def redistribute(model: Transformer) -> None:
    """Sum and cut the gradients that tensor parallel leaves otherwise than their weights."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and placements(gradient) != placements(parameter):
            parameter.grad = gradient.redistribute(  # pyright: ignore[reportAttributeAccessIssue]
                placements=placements(parameter)
            )


def reduce_small(model: Transformer, layout: Layout) -> None:
    """Sum what FSDP leaves alone, gradients of gains, scales and biases, over the batch's parts."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return
    left = [p for p in model.parameters() if p.grad is not None and not is_sharded(p)]
    found = [local(gradient) for gradient in gradients(left)]
    if found:
        total = layout.sum_(torch.cat([gradient.flatten().float() for gradient in found]))
        parts = total.split([gradient.numel() for gradient in found])
        for gradient, part in zip(found, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def is_sharded(parameter: Tensor) -> bool:
    """Whether FSDP shards it, also together with tensor parallel."""
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and "dp_shard" in (mesh.mesh_dim_names or ())


@torch.no_grad()
def clip_gradients(model: nn.Module, limit: float) -> Tensor:
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
