"""What a process that is not the first does in the place of logging: nothing."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from unitsphere.training.log import RunLog


class QuietLog(RunLog):
    """A run's log that neither opens, writes nor prints anything."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __enter__(self) -> "QuietLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def record(self, record: Mapping[str, Any]) -> None:
        """The first process writes the record."""

    def say(self, text: str) -> None:
        """The first process says it."""

    def sample(self, step: int, text: str) -> None:
        """The first process writes the sample."""

    def samples_size(self) -> int:
        """The first process knows."""
        return 0

    def sync(self) -> None:
        """Nothing is written."""
