"""Jobs as arrays of a SLURM cluster, handed over by submitit and followed by their run folders.

The jobs do not need the process that follows them: after Ctrl-C they continue, and the next call
finds them by `.jobs/jobs.json` in the study's folder. Both sides must see that folder. A job's exit
status is in `<run folder>.exit`; while SLURM's queue holds the job, it is not over.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.files import read_text, write_text
from unitsphere.studies.core.cluster import (
    LOGS,
    Cluster,
    CommandTask,
    Resources,
    exit_file,
    submitter,
)
from unitsphere.studies.core.jobs import (
    DIVERGED,
    RESUMES,
    SAVED,
    Clock,
    State,
    held_signals,
    last_words,
)

POLL_SECONDS = 2.0
LOOK_SECONDS = 10.0
"""between two questions to the queue, which all users of a cluster ask"""
LOST_LOOKS = 2
"""how often in a row a job must be missing from the queue: its exit status may be on its way"""
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL")
OVER += ("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
"""states of jobs that the queue still knows, but that are over"""
QUEUE_SECONDS = 60.0
"""after which a queue that is asked does not answer"""
MANY = 1000
"""jobs at a time where the study does not limit them"""


class Queue(Protocol):
    """Describes jobs by their numbers ("77_3")."""

    def look(self, numbers: Iterable[str]) -> Mapping[str, str] | None:
        """Number -> state ("RUNNING") of those that are in the queue; None: it does not answer."""
        ...

    def cancel(self, number: str) -> None:
        """Have a job save and end."""


class Squeue:
    """The queue of a SLURM cluster."""

    def look(self, numbers: Iterable[str]) -> Mapping[str, str] | None:
        """See `Queue`; one question for all jobs."""
        arrays = sorted({number.partition("_")[0] for number in numbers})
        asked = ["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(arrays)}"]
        try:
            answer = subprocess.run(
                asked, capture_output=True, text=True, check=False, timeout=QUEUE_SECONDS
            )
        except subprocess.TimeoutExpired:
            return None
        if answer.returncode and "Invalid job id" not in answer.stderr:
            return None
        lines = (line.partition(" ") for line in answer.stdout.splitlines())
        return {number: state for number, _, state in lines if state not in OVER}

    def cancel(self, number: str) -> None:
        """See `Queue`; no matter if it has ended."""
        subprocess.run(["scancel", number], capture_output=True, check=False)


class Processes:
    """The "queue" of submitit's local executor: a job's number is its process's."""

    def look(self, numbers: Iterable[str]) -> Mapping[str, str] | None:
        """See `Queue`."""
        return {number: "RUNNING" for number in numbers if is_alive(int(number))}

    def cancel(self, number: str) -> None:
        """See `Queue`."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGTERM)


@dataclass
class _Followed:
    """A job in the cluster; `clock` runs since it was first seen at work."""

    state: State
    number: str
    clock: Clock | None = None
    missing: int = 0
    asked: bool = False


class SlurmExecutor:
    """All jobs of a study at once, at most `workers` of them at work if that is given.

    Args:
        folder: the study's, which the nodes see too.
        resources: what each job is given.
        workers: jobs at work at a time.
        cluster: "local" starts them on this machine, all at once.
    """

    poll_seconds = POLL_SECONDS

    def __init__(
        self,
        folder: Path,
        resources: Resources,
        workers: int | None = None,
        cluster: Cluster = "slurm",
    ) -> None:
        self.workers = workers or MANY
        self.resources = resources
        self.logs = folder.absolute() / LOGS
        self.submitter = submitter(cluster, self.logs, resources, "run.executor =")
        self.queue: Queue = Squeue() if cluster == "slurm" else Processes()
        self.known: dict[str, str] = {}
        self.followed: list[_Followed] = []
        self.queued: Mapping[str, str] = {}
        self.looked = float("-inf")

    def begin(self, states: Sequence[State]) -> None:
        """Find the jobs that are in the cluster already, and submit the others as one array."""
        known = self.known = self._known()
        alive = self.queue.look(known.values()) if known else {}
        if alive is None:
            raise UserError("squeue does not answer: try again when the cluster is back")
        rest = []
        for state in states:
            number = known.pop(run_of(state), None)
            if number in alive and number is not None:
                self.followed.append(_Followed(state, number))
            elif number is None or not diverged_since(state):
                rest.append(state)
        with held_signals():  # a job that is submitted and not noted would be submitted again
            if rest:
                self._submit(rest)
            self._note()

    def poll(self) -> bool:
        """Bring the states up to date; whether a job is in the cluster."""
        fresh, before = self._look(), len(self.followed)
        self.followed = [job for job in self.followed if not self._ended(job, fresh)]
        if len(self.followed) < before:
            self._note()
        return bool(self.followed)

    def interrupt(self) -> str:
        """The jobs continue by themselves."""
        if not self.followed:
            return RESUMES
        arrays = " ".join(sorted({job.number.partition("_")[0] for job in self.followed}))
        return (
            f"{len(self.followed)} runs continue in the cluster: the same command finds them "
            f"again; `scancel {arrays}` stops them, each saved"
        )

    def close(self) -> None:
        """Nothing of it is on this machine."""

    def _known(self) -> dict[str, str]:
        """Run -> number of the jobs whose end nobody has seen."""
        path = self.logs / "jobs.json"
        return read_json(path) if path.exists() else {}

    def _note(self) -> None:
        """Write down those jobs: what is followed, and what an earlier call left of other runs."""
        followed = {run_of(job.state): job.number for job in self.followed}
        text = json.dumps(self.known | followed, indent=2)
        write_text(self.logs / "jobs.json", text + "\n")

    def _submit(self, states: Sequence[State]) -> None:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        tasks = []
        for state in states:
            exit_file(state.job).unlink(missing_ok=True)
            tasks.append(CommandTask(state.job, self.resources.cpus or 1))
        self.submitter.update_parameters(slurm_array_parallelism=self.workers)
        try:
            jobs = self.submitter.submit_array(tasks)
        except (FailedJobError, FailedSubmissionError) as error:
            raise UserError(f"SLURM refused the jobs: {error}") from error
        for state, job in zip(states, jobs, strict=True):
            self.followed.append(_Followed(state, str(job.job_id)))

    def _look(self) -> bool:
        """Ask the queue if it is time; whether it has answered."""
        if time.monotonic() < self.looked + LOOK_SECONDS:
            return False
        self.looked = time.monotonic()
        answer = self.queue.look([job.number for job in self.followed])
        self.queued = self.queued if answer is None else answer
        return answer is not None

    def _ended(self, job: _Followed, fresh: bool) -> bool:
        """Bring a job's state up to date; whether it has ended."""
        where = self.queued.get(job.number)
        at_work = where in ("RUNNING", "COMPLETING")
        if at_work and job.clock is None:
            job.clock = Clock(job.state)
        if job.clock is not None:
            job.clock.read()
        if job.state.stop is not None and not job.asked:
            job.asked = True
            self.queue.cancel(job.number)
        code = read_exit(exit_file(job.state.job))
        if fresh:
            job.missing = 0 if where else job.missing + 1
        if code not in (None, SAVED) or (code is not None and job.missing):
            job.state.end(code)
        elif job.missing >= LOST_LOOKS and job.state.stop is not None:
            job.state.end(SAVED)  # cancelled before its turn came: nothing ran that had to save
        elif job.missing >= LOST_LOOKS:
            job.state.status, job.state.seconds_left = "failed", None
            job.state.error = f"left the queue before its end (cancelled, killed?): see {self.logs}"
        else:
            job.state.status = "running" if at_work else "waiting"
            return False
        return True


def run_of(state: State) -> str:
    """What a job is known by: its run folder."""
    return str(state.job.out.absolute())


def diverged_since(state: State) -> bool:
    """Whether a job diverged while nobody followed it, which its state then says."""
    code = read_exit(exit_file(state.job))
    if code in (None, 0, SAVED) or not DIVERGED.search(last_words(state.job.log, code)):
        return False
    state.end(code)
    return True


def read_exit(path: Path) -> int | None:
    """The exit status in a file; None while there is none, or it is being written."""
    text = read_text(path, path.parent) if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def is_alive(process: int) -> bool:
    """Whether a process still runs; takes note of the end of one of this process's own."""
    with contextlib.suppress(ChildProcessError):  # another's
        os.waitpid(process, os.WNOHANG)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
