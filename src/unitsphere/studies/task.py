"""One task of a submitted job: runs the job's command; what was stopped goes on later.

What asks it to stop decides whether the job goes back into the queue. The end of its time (SIGUSR2,
or the run's own train.time_limit) does. SIGTERM is also what `scancel` sends: the run saves, and
SLURM itself requeues the job if it was preempted.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from unitsphere.files import append_to, write_text
from unitsphere.studies.jobs import SAVED, Job

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

TIME_IS_UP = signal.SIGUSR2


def exit_file(job: Job) -> Path:
    """Where a job on a cluster leaves its exit status, beside its run folder."""
    return job.out.with_name(job.out.name + ".exit")


class CommandTask:
    """A job's command, as submitit calls it in each task; the first writes the exit status."""

    def __init__(self, job: Job, threads: int) -> None:
        self.argv = list(job.argv)
        self.env = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "PYTHONUNBUFFERED": "1",
            **job.env,
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

    def checkpoint(self) -> "DelayedSubmission":
        """The next turn's task: this one, for all else is in the run folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def ignore_notice() -> None:
    """For a process that is to be stopped by SIGTERM alone."""
    signal.signal(TIME_IS_UP, signal.SIG_IGN)


def torchrun_variables() -> dict[str, str]:
    """RANK and so on of this task, by submitit's account of the job."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    own = TorchDistributedEnvironment()
    alone = JobEnvironment().num_nodes == 1  # then no name has to be looked up
    return {
        "MASTER_ADDR": "127.0.0.1" if alone else own.master_addr,
        "MASTER_PORT": str(own.master_port),
        "RANK": str(own.rank),
        "WORLD_SIZE": str(own.world_size),
        "LOCAL_RANK": str(own.local_rank),
        "LOCAL_WORLD_SIZE": str(own.local_world_size),
    }
