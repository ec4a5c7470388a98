"""torchrun's own agent, whose workers are forked from a process that has imported everything."""

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from children import LOST, PREEMPTED, fork
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Workers whose agent was killed become children of this process, which `reap` waits for."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def torchrun(work: Callable[[], object], processes: int, said: Path) -> int:
    """The id of an agent that runs `work` in so many workers; a process group of its own.

    It ends with LOST if a worker died, with PREEMPTED if it was told to stop. A worker leaves its
    id in a file beside `said`.
    """

    def worker() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # forked: these are the agent's
            signal.signal(number, signal.SIG_DFL)
        pid_file(said, int(os.environ["RANK"])).write_text(str(os.getpid()))
        work()

    def agent() -> None:
        os.setpgid(0, 0)
        try:
            elastic_launch(config(processes), worker)()
        except ChildFailedError as error:
            print(error, flush=True)
            os._exit(LOST)
        except SignalException:
            os._exit(PREEMPTED)

    return fork(agent, said)


def pid_file(said: Path, rank: int) -> Path:
    """Where a worker leaves its id."""
    return said.with_name(f"{said.name}.{rank}")


def config(processes: int) -> LaunchConfig:
    """What `torchrun --nproc-per-node` makes of itself, but for the way it starts its workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="torture",
        rdzv_backend="static",
        rdzv_endpoint=endpoint,
        rdzv_configs={"rank": 0, "timeout": 60},
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(),
    )


def kill_all(agent: int) -> None:
    """As a machine that goes down: agent and workers at once."""
    try:
        os.killpg(agent, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        os.kill(agent, signal.SIGKILL)


def reap(agent: int) -> None:
    """Wait until all of an agent's workers are gone, after itself."""
    while True:
        try:
            os.waitpid(-agent, 0)
        except ChildProcessError:
            return
