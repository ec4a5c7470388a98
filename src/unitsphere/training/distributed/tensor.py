"""Tensor parallel: processes share every matrix product, each model part as its `tp_plan` says.

Between a matrix cut by columns and the next, cut by rows, a process computes its own heads and
hidden units with ordinary tensors; h, norms and residual steps are whole in every process, and
the same. Weights that are cut are DTensors, so clipping, projection, FSDP2 and checkpoints know
what a shard is a shard of.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)

from unitsphere.errors import UserError
from unitsphere.models.experts import experts_of
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.mixers.recurrent import RecurrentMixer
from unitsphere.models.parts import Embedding, Linear, Scale
from unitsphere.models.plans import Shard as PlannedShard
from unitsphere.models.plans import tp_plan
from unitsphere.models.trunk import Transformer
from unitsphere.training.distributed.layout import Layout

HEADS, LAST = Shard(1), Shard(-1)  # of [batch, H, time, d_k], of [batch, time, units]


def share_matrices(model: Transformer, layout: Layout) -> None:
    """Cut the model's matrices over the `tp` processes of `layout`, in place.

    Raises UserError unless heads, hidden units and vocabulary can be cut evenly.
    """
    assert layout.mesh is not None
    mesh = layout.mesh["tp"]
    if any(experts_of(model)):
        raise UserError(
            "parallel.tp does not go with model.n_experts: take parallel.dp_shard, which shards "
            "the experts over processes"
        )
    if model.bigrams is not None:
        raise UserError("parallel.tp does not go with model.bigram_rows: take parallel.dp_shard")
    named: set[nn.Module] = set()
    for module in list(model.modules()):
        if isinstance(module, AttentionMixer):
            check_heads(module, mesh.size())
        if isinstance(module, RecurrentMixer) and module.n_heads % mesh.size():
            raise UserError(
                f"parallel.tp {mesh.size()} does not divide the {module.n_heads} heads of a "
                "recurrent mixer: take another parallel.tp or model.recurrence.n_heads"
            )
        for name, cut in tp_plan(module).items():
            part = getattr(module, name, None)
            if part is None or isinstance(part, nn.Identity):
                continue
            axis = 1 if cut == "rows" else 0
            for shape in (parameter.shape for parameter in part.parameters(recurse=False)):
                if cut not in WHOLE and axis < len(shape) and shape[axis] % mesh.size():
                    raise UserError(
                        f"parallel.tp {mesh.size()} does not divide {name}'s {shape[axis]} {cut}: "
                        "take a smaller parallel.tp, or other sizes of the model"
                    )
            CUTTERS[cut](part, mesh)
            named.add(part)
        if isinstance(module, AttentionMixer):  # the heads of this process
            module.n_heads //= mesh.size()
            module.n_kv_heads //= mesh.size()
    forgotten = [n for n, m in model.named_modules() if isinstance(m, Linear) and m not in named]
    if forgotten:
        raise ValueError(f"{type(model).__name__} does not say how {forgotten[0]} is cut")


def check_heads(attention: AttentionMixer, parts: int) -> None:
    """Raise UserError unless each process gets as many heads, and as many of keys and values."""
    if attention.E_v is not None:
        raise UserError(
            "parallel.tp does not go with model.value_embeddings: take parallel.dp_shard"
        )
    if attention.n_heads % parts or attention.n_kv_heads % parts:
        raise UserError(
            f"parallel.tp {parts} does not divide {attention.n_heads} heads of queries and "
            f"{attention.n_kv_heads} of keys: take another parallel.tp or model.n_heads"
        )


def cut_columns(linear: nn.Module, mesh: DeviceMesh) -> None:
    """Whole x in, own outputs out; the gradient of x is summed over the processes."""
    distribute_module(linear, mesh, placed(0), entering(Replicate()), leaving(LAST))


def cut_rows(linear: nn.Module, mesh: DeviceMesh) -> None:
    """Own inputs in, the sum of all processes' outputs out."""
    distribute_module(linear, mesh, placed(1), entering(LAST), leaving(Replicate()))


def cut_vocabulary(part: nn.Module, mesh: DeviceMesh) -> None:
    """An embedding's output is whole; head and s_z are taken as they are, by the loss."""
    if isinstance(part, Embedding):
        distribute_module(part, mesh, placed(0), entering(Replicate()), leaving(Replicate()))
    elif isinstance(part, Scale):
        cut_units(part, mesh)
    else:
        distribute_module(part, mesh, placed(0))


def cut_units(scale: nn.Module, mesh: DeviceMesh) -> None:
    """A scale that a cut weight is multiplied by: a DTensor like that."""
    assert isinstance(scale, Scale)
    if scale.stored is None:
        return
    if scale.stored.dim():
        distribute_module(scale, mesh, placed(0))
    else:
        scale.register_forward_hook(lambda module, arguments, value: whole(value, mesh))


def cut_heads(part: nn.Module, mesh: DeviceMesh) -> None:
    """A scale of each head, or one for all, whose gradient then comes from all processes."""
    if not isinstance(part, Scale):
        distribute_module(part, mesh, placed(0), entering(HEADS), leaving(HEADS))
    elif part.stored is not None and part.stored.dim():
        distribute_module(part, mesh, placed(0), None, leaving(Shard(0)))
    elif part.stored is not None:
        cut_shared(part, mesh)


def cut_channels(part: nn.Module, mesh: DeviceMesh) -> None:
    """A module that returns its parameter: own part out."""
    distribute_module(part, mesh, placed(0), None, leaving(Shard(0)))


def cut_shared(part: nn.Module, mesh: DeviceMesh) -> None:
    """A module that returns its parameter, one for the heads of all processes: they add to its
    gradient."""
    part.register_forward_hook(
        lambda module, arguments, value: whole(value, mesh).to_local(grad_placements=[Partial()])
    )


def cut_gathered(norm: nn.Module, mesh: DeviceMesh) -> None:
    """A norm over all heads or units: gathered before, own part after."""
    distribute_module(norm, mesh, None, entering(LAST, Replicate()), leaving(LAST))


CUTTERS: dict[PlannedShard, Callable[[nn.Module, DeviceMesh], None]] = {
    "columns": cut_columns,
    "rows": cut_rows,
    "vocabulary": cut_vocabulary,
    "heads": cut_heads,
    "channels": cut_channels,
    "shared": cut_shared,
    "units": cut_units,
    "gathered": cut_gathered,
}
WHOLE: tuple[PlannedShard, ...] = ("gathered", "shared")
"""What stays whole, whatever its size."""


def whole(value: Any, mesh: DeviceMesh) -> DTensor:
    """A value that is the same in all processes."""
    return DTensor.from_local(value, mesh, [Replicate()], run_check=False)


def placed(axis: int) -> Callable[[str, nn.Module, DeviceMesh], None]:
    """Cuts a module's parameters along an axis, vectors along their only one if that is the first.

    Every process holds the whole parameter, so nothing is sent. What is not cut here (the bias of
    a Linear cut by rows) `distribute_module` leaves whole.
    """

    def place(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for local, parameter in list(module.named_parameters(recurse=False)):
            if axis < parameter.dim():
                cut = distribute_tensor(parameter.data, mesh, [Shard(axis)], src_data_rank=None)
                module.register_parameter(local, nn.Parameter(cut))

    return place


def entering(
    given: Placement, wanted: Placement | None = None
) -> Callable[[nn.Module, Any, DeviceMesh], Any]:
    """A hook that makes a module's first argument a DTensor: `given`, then brought to `wanted`."""

    def enter(module: nn.Module, arguments: Any, mesh: DeviceMesh) -> Any:
        x = DTensor.from_local(arguments[0], mesh, [given], run_check=False)
        if wanted is not None:
            x = x.redistribute(placements=[wanted])
        return (x, *arguments[1:])

    return enter


def leaving(wanted: Placement) -> Callable[[nn.Module, Any, DeviceMesh], Any]:
    """A hook that brings a module's output to `wanted`, and hands on this process's part of it."""

    def leave(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
        return output.redistribute(placements=[wanted]).to_local()

    return leave
