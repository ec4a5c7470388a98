"""Small questions about tensors that may be DTensors, spread over processes, or ordinary ones."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

Axes = int | tuple[int, ...]
"""One axis: a matrix is a set of vectors along it. Both: the whole matrix is one vector."""


def local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process holds; an ordinary tensor itself."""
    shard = getattr(tensor, "to_local", None)
    return tensor if shard is None else shard()


def whole(tensor: Tensor) -> Tensor:
    """All of a DTensor, gathered; an ordinary tensor itself."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def placements(tensor: Tensor) -> Sequence[Any]:
    """Where the parts of a DTensor are; nothing for an ordinary tensor."""
    return getattr(tensor, "placements", ())


def spreads_vectors(weight: Tensor, dim: Axes) -> bool:
    """Whether vectors of the weight along `dim` are spread over several processes."""
    axes = {axis % weight.dim() for axis in ((dim,) if isinstance(dim, int) else dim)}
    return any(p.is_partial() or getattr(p, "dim", None) in axes for p in placements(weight))


def complete(sums: Tensor) -> Tensor:
    """A DTensor whose terms several processes have, summed; any other tensor itself."""
    if not any(p.is_partial() for p in placements(sums)):
        return sums
    from torch.distributed.tensor import Replicate

    known = [Replicate() if p.is_partial() else p for p in placements(sums)]
    return sums.redistribute(placements=known)  # pyright: ignore[reportAttributeAccessIssue]


def part_of(value: Tensor, target: Tensor) -> Tensor:
    """The part of `value`, the whole of a tensor like `target`, that this process holds."""
    if not placements(target):
        return value
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        value.shape,
        target.device_mesh,  # pyright: ignore[reportAttributeAccessIssue]
        placements(target),
    )
    return value[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))]


def on_mesh_of(target: Tensor, value: Tensor) -> Tensor:
    """`value`, which all processes hold, as a DTensor on the mesh of `target` if it has one."""
    if not placements(target):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    mesh = target.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)


def part_like(part: Tensor, target: Tensor) -> Tensor:
    """The tensor spread as `target` is, of which this process holds `part`."""
    if not placements(target):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(target, DTensor)
    return DTensor.from_local(
        part,
        target.device_mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of the same mesh, ordinary ones in one more group.

    torch's foreach functions take one mesh at a time.
    """
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())
