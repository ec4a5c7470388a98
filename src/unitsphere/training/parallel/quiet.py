"""A run's log and its stopping where there are several processes."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from unitsphere.training.log import RunLog
from unitsphere.training.parallel.layout import Layout
from unitsphere.training.stop import Stop


class AgreedStop(Stop):
    """A stop that all processes heed at the same question, whichever of them got the signal."""

    def __init__(self, layout: Layout, limit: float | None = None) -> None:
        super().__init__(limit)
        self.layout = layout

    def due(self) -> bool:
        """Whether some process is to stop; all ask equally often."""
        return self.layout.any(super().due())


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
