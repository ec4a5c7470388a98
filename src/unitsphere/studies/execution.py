"""`[run]` of a study's file: how its runs are executed; it may change when the study goes on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from unitsphere.errors import UserError
from unitsphere.studies.cluster import Resources
from unitsphere.studies.executor import Executor, here
from unitsphere.studies.jobs import Job
from unitsphere.studies.slurm import SlurmExecutor


@dataclasses.dataclass(frozen=True)
class Execution:
    """Where a study's runs are trained, and how many at a time."""

    executor: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: arrays of a cluster"""
    workers: int | None = None
    """runs at a time; none: one a core or GPU, in a cluster all"""
    slurm: Resources = dataclasses.field(default_factory=Resources)
    """what each run is given there"""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError(f"run.workers must be at least 1: {self.workers}")
        if self.executor == "local" and self.slurm != Resources():
            raise UserError('run.slurm is for run.executor = "slurm": set it, or leave it out')

    def choose(self, jobs: Sequence[Job], folder: Path) -> Executor:
        """The executor for the jobs of the study in `folder`."""
        if self.executor == "slurm":
            return SlurmExecutor(folder, self.slurm, self.workers)
        return here(jobs, self.workers)
