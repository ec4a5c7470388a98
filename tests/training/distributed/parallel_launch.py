"""Runs a function in several processes that are one process group on gloo, once a layout.

Importing takes far longer than what is then computed, so one launch does all cases, in processes
that are forked from one that has imported once. A function is called as `function(rank, folder)`
and leaves what it found in files.
"""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import server

SECONDS = 280
"""After which a collective, and the launch as a whole, gives up."""


def launch(function: Callable[[int, Path], None], processes: int, folder: Path) -> str:
    """Call `function` in every process; what they printed.

    Raises if one of them raised or they do not end.
    """
    port = free_port()
    server()
    context = mp.start_processes(
        _enter,
        (function, processes, port, folder),
        processes,
        join=False,
        start_method="forkserver",
    )
    assert context is not None
    waited = 0
    while not context.join(timeout=1):
        waited += 1
        if waited > SECONDS:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{function} on {processes} processes hangs")
    return "".join((folder / f"printed-{rank}").read_text() for rank in range(processes))


def _enter(
    rank: int, function: Callable[[int, Path], None], world: int, port: int, folder: Path
) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "RANK": str(rank)}
    torch.set_num_threads(1)
    printed = os.open(folder / f"printed-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS),
    )
    try:
        function(rank, folder)
    finally:
        dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
