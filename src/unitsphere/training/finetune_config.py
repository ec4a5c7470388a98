"""What a fine-tuning is told: a run, files, fields, and how to train."""

import math
from dataclasses import dataclass

from unitsphere.config import check_seed
from unitsphere.data.tasks import TASKS, Metric, TaskName
from unitsphere.errors import UserError
from unitsphere.models.classifier import Pool


@dataclass(frozen=True)
class FinetuneConfig:
    """What to fine-tune, on what, and how."""

    run: str
    data: str
    test: str | None = None
    task: TaskName | None = None
    text: str | None = None
    text2: str | None = None
    label: str | None = None
    lr: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    seed: tuple[int, ...] = (0, 1, 2)
    epochs: int = 3
    batch: int = 32
    pool: Pool | None = None
    scratch: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1: {getattr(self, name)}")
        if not self.lr or not all(0 < lr < math.inf for lr in self.lr):
            raise UserError(f"--lr takes numbers above 0: {' '.join(map(str, self.lr))}")
        if not self.seed:
            raise UserError("--seed takes numbers from 0 on")
        for seed in self.seed:
            check_seed("--seed", seed)
        for name in ("lr", "seed"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UserError(f"--{name} names a value twice")

    @property
    def metric(self) -> Metric:
        """The score that decides between rates."""
        return TASKS[self.task].metric if self.task else "accuracy"
