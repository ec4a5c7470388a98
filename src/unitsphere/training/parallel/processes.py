"""The processes of a run, as torchrun starts them; nothing at all where there is only one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from unitsphere.errors import UserError
from unitsphere.training.device import pick_device
from unitsphere.training.parallel.config import ParallelConfig
from unitsphere.training.parallel.layout import Layout
from unitsphere.training.parallel.watch import watched

BACKENDS = {"cuda": "cpu:gloo,cuda:nccl"}


@contextmanager
def processes(config: ParallelConfig, device: str) -> Iterator[Layout]:
    """This process's place among those that torchrun started, with no degrees yet.

    A process group that is there already is used and left. A single process has none. A collective
    that fails within because a process hangs or died ends in a `UserError` that names it.
    """
    if dist.is_initialized():
        layout = Layout(dist.get_rank(), dist.get_world_size(), local_rank())
        with watched(layout):
            yield layout
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Layout()
        return
    if "MASTER_ADDR" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {world}, but nothing says where the others are: start the processes "
            "by torchrun --nproc-per-node N -m unitsphere train …"
        )
    kind = own_device(device).type
    dist.init_process_group(BACKENDS.get(kind, "gloo"), timeout=timedelta(seconds=config.timeout))
    layout = Layout(dist.get_rank(), world, local_rank())
    try:
        with watched(layout):
            yield layout
    finally:
        dist.destroy_process_group()


def local_rank() -> int:
    """The process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def own_device(name: str) -> torch.device:
    """`train.device` for this process: of several GPUs, that of its number on the machine."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and name in ("auto", "cuda") and torch.cuda.is_available():
        device = pick_device(f"cuda:{local_rank()}")
        torch.cuda.set_device(device)
        return device
    return pick_device(name)
