"""The [parallel] table of a recipe, apart from what needs torch.distributed: configs load fast."""

from dataclasses import dataclass
from typing import Literal

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
