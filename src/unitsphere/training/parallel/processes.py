"""The processes of a run, as torchrun starts them; nothing at all where there is only one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from unitsphere.errors import UserError
from unitsphere.training.device import pick_device
from unitsphere.training.parallel.agree import everywhere
from unitsphere.training.parallel.config import ParallelConfig
from unitsphere.training.parallel.layout import Layout
from unitsphere.training.parallel.watch import watched

TELL = 60
"""Seconds for which a process with a mistake waits for the others, to tell them."""
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
    try:
        kind = own_device(device).type
    except UserError as mistake:
        tell_others(mistake)
        raise
    with joined(kind, config.timeout) as layout:
        yield layout


@contextmanager
def joined(kind: str, timeout: int) -> Iterator[Layout]:
    """This process's place once all processes are there; `timeout` in seconds."""
    dist.init_process_group(BACKENDS.get(kind, "gloo"), timeout=timedelta(seconds=timeout))
    layout = Layout(dist.get_rank(), dist.get_world_size(), local_rank())
    try:
        with watched(layout):
            yield layout
    finally:
        dist.destroy_process_group()


def tell_others(mistake: UserError | OSError) -> None:
    """Let the other processes of a run know of a mistake of this one's before it joins them.

    They would wait for it until `parallel.timeout`. Does nothing where there are none.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        return

    def fail() -> None:
        raise mistake

    kind = "cuda" if torch.cuda.is_available() else "cpu"  # as the others probably have it
    # A UserError: all know. The other: nobody has come within the time who could be told.
    with suppress(UserError, dist.DistError), joined(kind, TELL) as layout:
        everywhere(layout, fail)


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
