"""Processes that are forked from one that has imported everything: starting one costs nothing.

The server is started once; it has no threads, which no fork survives.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch

IMPORTS = [
    "pytest",
    "unitsphere.cli.train",
    "unitsphere.training.run",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
]


def server() -> ForkServerContext:
    """The way to start such processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


class Forked:
    """A function in a process of its own, in this one's folder and environment, as a program.

    `folder` keeps what it says on stdout and stderr.
    """

    def __init__(self, function: Callable[..., int | None], *given: object, folder: Path) -> None:
        self.said = [folder / "stdout", folder / "stderr"]
        for path in self.said:
            path.write_text("")
        place = os.getcwd(), dict(os.environ)
        self.process = server().Process(target=_run, args=(function, given, self.said, *place))
        self.process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """As from a terminal or a scheduler."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()
        self.process.join()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has said on stdout and stderr when it has ended; killed if it does not."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"it ran for {timeout} seconds: {self.said[1].read_text()}")
        out, err = (path.read_text() for path in self.said)
        return out, err


def _run(
    function: Callable[..., int | None],
    given: tuple[object, ...],
    said: list[Path],
    folder: str,
    environment: dict[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    for stream, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.exit(function(*given))


def wait_for(found: Callable[[], object], seconds: float) -> None:
    """Look 50 times a second until something is found."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)
