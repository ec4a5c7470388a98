"""`unitsphere train … --submit slurm`: the same command as a job, by submitit.

The job's tasks are the processes that torchrun would start. `--submit local` runs them on this
machine, in the background.
"""

import dataclasses
import importlib.util
import math
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from unitsphere.cli.parse import check_positive, parse
from unitsphere.errors import UserError

LOGS = ".jobs"
"""In the run folder, which takes hidden names: logs, and what submitit writes of its jobs."""
NOTICE = 120
"""Seconds before the end of its time at which SLURM tells a job to save (submitit here: 30)."""
MOST_TURNS = 1000
"""How often a job that needs more time than it was given goes back into the queue."""


@dataclasses.dataclass(frozen=True)
class Submission:
    """`--submit` and its options. `time` is a text such as 24h, `memory` in GB a node."""

    cluster: Annotated[Literal["slurm", "local"], arg(help="slurm, or local: here")] = "slurm"
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
        counts = {name: getattr(self, name) for name in ("nodes", "tasks", "cpus", "memory")}
        check_positive(**{f"submit.{name}": count for name, count in counts.items()})
        if self.gpus < 0:
            raise UserError(f"--submit.gpus must be 0 or more: {self.gpus}")
        if self.cluster == "local" and self.nodes > 1:
            raise UserError("--submit local has this one machine: leave --submit.nodes out")

    def parameters(self) -> dict[str, Any]:
        """The same in submitit's words: a process for each GPU, unless `tasks` says otherwise."""
        from unitsphere.training.stop import seconds_of

        minutes = math.ceil(seconds_of(self.time, "submit.time") / 60)
        return {
            "name": self.name,
            "nodes": self.nodes,
            "tasks_per_node": self.tasks or max(self.gpus, 1),
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
    if importlib.util.find_spec("submitit") is None:
        raise UserError("--submit needs submitit: pip install 'unitsphere[cluster]'")
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from unitsphere.cli.job import TrainTask
    from unitsphere.training.folder import saved_config

    if submission.cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
        raise UserError("--submit slurm found no srun: submit from a machine of the cluster")
    parameters = submission.parameters()
    logs = out.absolute() / LOGS
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use {out} as run folder: {error.strerror}") from error
    saved_config(out)
    turns = {f"{submission.cluster}_max_num_timeout": MOST_TURNS}
    executor = submitit.AutoExecutor(logs, cluster=submission.cluster, **turns)
    executor.update_parameters(**parameters)
    try:
        job = executor.submit(TrainTask(argv))
    except (FailedJobError, FailedSubmissionError) as error:
        raise UserError(f"SLURM refused the job: {error}") from error
    announce(submission, str(job.job_id), out / LOGS)
    return 0


def announce(submission: Submission, job: str, logs: Path) -> None:
    """Say which job it is, where it writes, how to follow and to stop it."""
    slurm = submission.cluster == "slurm"
    print(f"job {job}: {submission.cluster}, logs in {logs}")
    print(f"  follow  tail -F {shlex.quote(str(logs / f'{job}_0_log.out'))}")
    print(f"  state   {f'squeue -j {job}' if slurm else f'ps -p {job}'}")
    print(f"  stop    {f'scancel {job}' if slurm else f'kill {job}'} (saves first)")
