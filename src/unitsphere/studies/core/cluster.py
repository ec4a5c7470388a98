"""What jobs on a cluster ask for, and submitit's executor that hands them over."""

import dataclasses
import importlib.util
import math
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO

from unitsphere.errors import UserError
from unitsphere.files import append_to, write_text
from unitsphere.studies.core.jobs import SAVED, Job
from unitsphere.training.stop import seconds_of

if TYPE_CHECKING:
    from submitit import AutoExecutor
    from submitit.helpers import DelayedSubmission


Cluster = Literal["slurm", "local"]
"""local: processes of this machine that submitit starts, in the background"""
LOGS = ".jobs"
"""In a run's or a study's folder: logs, and what submitit writes of its jobs."""
NOTICE = 120
"""Seconds before the end of its time at which SLURM tells a job to save (submitit here: 30)."""
MOST_TURNS = 1000
"""How often a job that needs more time than it was given goes back into the queue."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What each job is given. `time` is a text such as 24h, `memory` in GB a node."""

    prefix: ClassVar[str] = "run.slurm."

    nodes: int = 1
    gpus: int = 0
    tasks: int | None = None
    cpus: int | None = None
    memory: int | None = None
    time: str = "24h"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    name: str = "unitsphere"

    def __post_init__(self) -> None:
        for name in ("nodes", "tasks", "cpus", "memory"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UserError(f"{self.prefix}{name} must be at least 1: {count}")
        if self.gpus < 0:
            raise UserError(f"{self.prefix}gpus must be 0 or more: {self.gpus}")
        seconds_of(self.time, f"{self.prefix}time")

    @property
    def processes(self) -> int:
        """On all nodes: one for each GPU, unless `tasks` says otherwise."""
        return self.nodes * (self.tasks or max(self.gpus, 1))

    def parameters(self) -> dict[str, Any]:
        """The same in submitit's words."""
        minutes = math.ceil(seconds_of(self.time) / 60)
        return {
            "name": self.name,
            "nodes": self.nodes,
            "tasks_per_node": self.processes // self.nodes,
            "gpus_per_node": self.gpus or None,
            "cpus_per_task": self.cpus,
            "mem_gb": self.memory,
            "timeout_min": minutes,
            "stderr_to_stdout": True,
            "slurm_signal_delay_s": min(NOTICE, 30 * minutes),
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "slurm_constraint": self.constraint,
            "slurm_additional_parameters": {"requeue": True},
        }


def submitter(cluster: Cluster, logs: Path, resources: Resources, who: str) -> "AutoExecutor":
    """submitit's executor, which keeps its files in `logs`; `who` asks for it ("--submit").

    Raises UserError without submitit, without SLURM's commands, or if `logs` cannot be made.
    """
    if importlib.util.find_spec("submitit") is None:
        raise UserError(f"{who} needs submitit: pip install 'unitsphere[cluster]'")
    import submitit

    if cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
        raise UserError(f"{who} slurm found no srun: submit from a machine of the cluster")
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use {logs.parent}: {error.strerror}") from error
    turns = {f"{cluster}_max_num_timeout": MOST_TURNS}
    executor = submitit.AutoExecutor(logs, cluster=cluster, **turns)
    executor.update_parameters(**resources.parameters())
    return executor


TIME_IS_UP = signal.SIGUSR2


def exit_file(job: Job) -> Path:
    """Where a job on a cluster leaves its exit status, next to its run folder."""
    return job.out.with_name(job.out.name + ".exit")


class Resubmitted(ABC):
    """A task of submitit's that every turn of its job does, for all else is in the run folder."""

    @abstractmethod
    def __call__(self) -> int | None:
        """Work until the turn ends."""

    def checkpoint(self) -> "DelayedSubmission":
        """The next turn's task: this one, for all else is in the run folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class CommandTask(Resubmitted):
    """A job's command, as submitit calls it in each task; the first writes the exit status."""

    def __init__(self, job: Job, threads: int) -> None:
        self.argv = list(job.argv)
        self.env = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "PYTHONUNBUFFERED": "1",
        }
        self.folder = Path.cwd()
        self.log = job.log.absolute()
        self.exit = exit_file(job).absolute()

    def __call__(self) -> None:
        """Run the command to its end; exits with 75 if it saved and the job is to stop."""
        variables = torchrun_variables()
        first = variables["RANK"] == "0"
        if first:
            self.exit.unlink(missing_ok=True)
        requeue = signal.getsignal(TIME_IS_UP)
        code, arrived = self._run(variables, first)
        if arrived and code == -signal.SIGTERM:  # it came before there was a run to save
            code = SAVED
        if code == SAVED and signal.SIGTERM not in arrived:
            signal.signal(TIME_IS_UP, requeue)
            signal.raise_signal(TIME_IS_UP)  # submitit: the first task requeues, and exits
        elif first:
            write_text(self.exit, f"{code}\n")
        if code == SAVED:
            sys.exit(SAVED)  # returning would tell submitit that the job is over

    def _run(self, variables: dict[str, str], first: bool) -> tuple[int, set[int]]:
        """The command's exit status, and the signals that came meanwhile; it got SIGTERM each."""
        arrived: set[int] = set()
        child: subprocess.Popen[bytes] | None = None

        def pass_on(number: int, frame: FrameType | None) -> None:
            arrived.add(number)
            if child is not None:
                child.send_signal(signal.SIGTERM)

        for number in (signal.SIGTERM, TIME_IS_UP):
            signal.signal(number, pass_on)
        with self._output(first) as log:
            child = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env={**os.environ, **self.env, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT if log else None,
                # SLURM's notice reaches every process of the job, and would end this one.
                preexec_fn=ignore_notice,
            )
        if arrived:
            child.send_signal(signal.SIGTERM)
        return child.wait(), arrived

    @contextmanager
    def _output(self, first: bool) -> Iterator[TextIO | None]:
        """The log of the job for the first task; the others keep their own of submitit's."""
        if not first:
            yield None
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with append_to(self.log) as log:
            yield log


def ignore_notice() -> None:
    """For a process that only SIGTERM should stop."""
    signal.signal(TIME_IS_UP, signal.SIG_IGN)


def torchrun_variables() -> dict[str, str]:
    """RANK and so on of this task, by submitit's account of the job."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    own = TorchDistributedEnvironment()
    single = JobEnvironment().num_nodes == 1  # then no name has to be looked up
    return {
        "MASTER_ADDR": "127.0.0.1" if single else own.master_addr,
        "MASTER_PORT": str(own.master_port),
        "RANK": str(own.rank),
        "WORLD_SIZE": str(own.world_size),
        "LOCAL_RANK": str(own.local_rank),
        "LOCAL_WORLD_SIZE": str(own.local_world_size),
    }
