"""What jobs on a cluster ask for, and submitit's executor that hands them over."""

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from unitsphere.errors import UserError
from unitsphere.training.stop import seconds_of

if TYPE_CHECKING:
    from submitit import AutoExecutor

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
