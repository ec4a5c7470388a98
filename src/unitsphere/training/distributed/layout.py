"""Which process does what: degrees of parallelism, the mesh of processes, a process's share.

| degree | processes | share |
|---|---|---|
| dp_replicate | hold a copy of the weights each | rows of a batch |
| dp_shard | hold a part of one copy's weights, gradients and optimizer state | rows of a batch |
| tp | hold a part of every matrix | heads, hidden units and vocabulary entries |

Ranks are laid out in that order, tp innermost: it communicates most, so it stays within a node.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from unitsphere.errors import UserError

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class ParallelConfig:
    """How dp_replicate · dp_shard · tp processes share a run (the names are torchtitan's)."""

    dp_replicate: int | None = None
    """copies of the weights, each with its own rows of every batch (DDP; with dp_shard or tp HSDP);
    none: the processes that dp_shard and tp leave, or 1 for a model that is to be sharded"""
    dp_shard: int | None = None
    """processes that share the weights, gradients and optimizer state of a copy (FSDP2), each with
    its own rows; none: all that are left if dp_replicate is given, the model has 1e9 parameters, or
    with tp, else 1"""
    tp: int = 1
    """processes that share every matrix product over the same rows (tensor parallel)"""
    ep: int = 1
    """expert parallel: not supported, 1; dp_shard shards the experts"""
    cp: int = 1
    """context parallel: not supported, 1"""
    pp: int = 1
    """pipeline parallel: not supported, 1"""
    reduce: Literal["batch", "part"] = "batch"
    """when gradients go over the network: once a batch, or, so that FSDP2 never holds the gradient
    of the whole model, after each micro-batch"""
    timeout: int = 600
    """seconds after which a process that waits for the others gives up"""

    def __post_init__(self) -> None:
        for name in ("dp_replicate", "dp_shard", "tp", "timeout"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"parallel.{name} must be at least 1: {value}")
        if self.ep != 1:
            raise UserError(
                f"parallel.ep {self.ep}: expert parallel is not supported; use parallel.dp_shard, "
                "which shards the experts of model.n_experts over processes"
            )
        if self.cp != 1:
            raise UserError(
                f"parallel.cp {self.cp}: context parallel is not supported; for long sequences use "
                "train.recompute full, parallel.tp, and a smaller train.micro_batch"
            )
        if self.pp != 1:
            raise UserError(
                f"parallel.pp {self.pp}: pipeline parallel is not supported; use parallel.dp_shard "
                "within a node or across nodes, and parallel.tp within a node"
            )


SHARDED_FROM = 10**9
"""Parameters from which on a model is sharded unless told otherwise: with Adam's state, 16 GB."""


class Degrees(NamedTuple):
    """How many processes each kind of sharing has."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1

    @property
    def data(self) -> int:
        """Into how many parts the rows of a batch go."""
        return self.dp_replicate * self.dp_shard


def degrees(config: ParallelConfig, world: int, parameters: int) -> Degrees:
    """The degrees of `world` processes, with what `config` leaves open resolved.

    Raises UserError unless they multiply to the number of processes.
    """
    replicate, shard, tp = config.dp_replicate, config.dp_shard, config.tp
    left = max(world // tp, 1)
    if replicate is None and shard is None:
        shard = left if parameters >= SHARDED_FROM or tp > 1 else 1
    if replicate is None:
        replicate = max(left // (shard or 1), 1)
    if shard is None:
        shard = max(left // replicate, 1)
    if replicate * shard * tp != world:
        raise UserError(
            f"parallel.dp_replicate {replicate} · dp_shard {shard} · tp {tp} is "
            f"{replicate * shard * tp}, but there are {world} processes: start as many by "
            "torchrun --nproc-per-node, or change the degrees"
        )
    return Degrees(replicate, shard, tp)


@dataclass(frozen=True)
class Layout:
    """A process's place among all."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    degrees: Degrees = Degrees()
    mesh: DeviceMesh | None = None
    data_mesh: DeviceMesh | None = None
    group: dist.ProcessGroup | None = None
    """what messages between processes go through; none: the group of all"""

    @property
    def first(self) -> bool:
        """Whether this is the process that logs and writes."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which part of the rows is this process's."""
        return self.rank // self.degrees.tp

    @property
    def shards_weights(self) -> bool:
        """Whether a process holds only a part of a weight."""
        return self.degrees.dp_shard > 1 or self.degrees.tp > 1

    def rows(self, total: int) -> tuple[int, int]:
        """The first of this process's rows of a batch of `total`, and how many they are."""
        count = total // self.degrees.data
        return self.data_rank * count, count

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors over the parts of a batch, in place."""
        if self.data_mesh is not None and self.degrees.data > 1:
            dist.all_reduce(tensor, group=self.data_mesh.get_group("dp"))
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process; no GPU waits for the answer."""
        if self.world == 1:
            return flag
        found = torch.tensor(int(flag))
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return bool(found)

    def with_degrees(self, found: Degrees, device: str) -> "Layout":
        """This place in the mesh of those degrees, of processes that compute on a `device` type."""
        if self.world == 1:
            return self
        names = ("dp_replicate", "dp_shard", "tp")
        mesh = init_device_mesh(device, tuple(found), mesh_dim_names=names)
        if found.dp_shard > 1 and found.tp > 1:
            mesh["dp_shard", "tp"]._flatten("shards")  # DTensor then sums over both at once
        data = init_device_mesh(device, (found.data, found.tp), mesh_dim_names=("dp", "tp"))
        return replace(self, degrees=found, mesh=mesh, data_mesh=data)

    def for_model(
        self, parallel: ParallelConfig, parameters: int, rows: int, context: int, device: str
    ) -> "Layout":
        """This place with the degrees that `parallel` asks for, or that suit a model's size.

        Raises UserError unless every process gets as many of a batch's `rows`.
        """
        found = degrees(parallel, self.world, parameters)
        if rows % found.data:
            fitting = max(rows // found.data, 1) * found.data * context
            raise UserError(
                f"train.batch_tokens gives {rows} sequences an update, which {found.data} "
                f"processes cannot share evenly: train.batch_tokens {fitting} would do"
            )
        return self.with_degrees(found, device)

    def aside(self, timeout: timedelta | None = None) -> "Layout":
        """This place, with messages that cannot meet those of another thread.

        timeout: how long they are waited for; none: torch's half an hour.
        """
        if self.world == 1:
            return self
        return replace(self, group=dist.new_group(backend="gloo", timeout=timeout))


SINGLE = Layout()
"""The only process there is."""
