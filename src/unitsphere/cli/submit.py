"""`unitsphere train … --submit slurm`: the same command as a job, by submitit.

The job's tasks are the processes that torchrun would start. `--submit local` runs them on this
machine, in the background.
"""

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from unitsphere.cli.parse import parse
from unitsphere.errors import UserError
from unitsphere.studies.core.cluster import LOGS, Cluster, Resources, submitter


@dataclasses.dataclass(frozen=True)
class Submission(Resources):
    """`--submit` and its options."""

    prefix: ClassVar[str] = "--submit."

    cluster: Annotated[Cluster, arg(help="slurm, or local: here")] = "slurm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster == "local" and self.nodes > 1:
            raise UserError("--submit local has this one machine: leave --submit.nodes out")


@dataclasses.dataclass(frozen=True)
class _Words:
    """Names the options as they are typed: --submit.nodes."""

    submit: Submission = dataclasses.field(default_factory=Submission)


def take_submission(argv: list[str]) -> tuple[Submission | None, list[str]]:
    """What --submit and its options say, None without --submit, and all other words."""
    ours: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name = word.partition("=")[0]
        if name != "--submit" and not name.startswith("--submit."):
            rest.append(word)
            continue
        ours.append(word.replace("--submit", "--submit.cluster", 1) if name == "--submit" else word)
        if "=" not in word:
            ours += [value for value in [next(words, None)] if value is not None]
    if not ours:
        return None, rest
    if not any(word.partition("=")[0] == "--submit.cluster" for word in ours):
        raise UserError(f"{ours[0]} is for a job: add --submit slurm")
    return parse(_Words, ours, "train", default=_Words()).submit, rest


def submit(submission: Submission, argv: list[str], out: Path) -> int:
    """Hand `unitsphere train` with `argv` over as a job; print its number and where its logs are.

    Raises UserError without submitit, without SLURM, if SLURM refuses the job, or if `out` holds
    something else than a run.
    """
    logs = out.absolute() / LOGS
    executor = submitter(submission.cluster, logs, submission, "--submit")
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from unitsphere.cli.job import TrainTask
    from unitsphere.training.resolve import config_in

    config_in(out)
    try:
        with detached():
            job = executor.submit(TrainTask(argv))
    except (FailedJobError, FailedSubmissionError) as error:
        raise UserError(f"SLURM refused the job: {error}") from error
    announce(submission, str(job.job_id), out / LOGS)
    return 0


@contextmanager
def detached() -> Iterator[None]:
    """Within: a process that is started here does not hold what this one prints into.

    A local job outlives the command, and `unitsphere train … | tee` ends when all have let go.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, own in kept.items():
            os.dup2(own, stream)
            os.close(own)
        os.close(nowhere)


def announce(submission: Submission, job: str, logs: Path) -> None:
    """Say which job it is, where it writes, how to follow and to stop it."""
    slurm = submission.cluster == "slurm"
    print(f"job {job}: {submission.cluster}, logs in {logs}")
    print(f"  follow  tail -F {shlex.quote(str(logs / f'{job}_0_log.out'))}")
    print(f"  state   {f'squeue -j {job}' if slurm else f'ps -p {job}'}")
    print(f"  stop    {f'scancel {job}' if slurm else f'kill {job}'} (saves first)")
