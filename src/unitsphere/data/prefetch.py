"""Batches read ahead by a thread, so that a slow disk does not hold up the steps."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Protocol

from unitsphere.data.batch import Batch


class Batches(Protocol):
    """Batches as a pure function of the step."""

    def batch(self, step: int) -> Batch: ...

    def rows(self, step: int, first: int, count: int) -> Batch: ...


class Prefetch:
    """The same batches; with each that is asked for, those of the next `ahead` steps are begun.

    As batches are a function of the step alone, there is no state to keep, and steps may be asked
    for in any order. What goes wrong in the thread is raised when that step's batch is asked for.
    Close it, or use it as a context manager.
    """

    def __init__(self, batches: Batches, ahead: int) -> None:
        self.batches, self.ahead = batches, ahead
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.begun: dict[tuple[int, ...], Future[Batch]] = {}

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        return self._take(step)

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of a step's batch from row `first` on."""
        return self._take(step, first, count)

    def _take(self, step: int, *part: int) -> Batch:
        read = self.batches.rows if part else self.batches.batch
        wanted = [(s, *part) for s in range(step, step + self.ahead + 1)]
        self.begun = {
            key: self.begun.get(key) or self.pool.submit(partial(read, *key)) for key in wanted
        }
        return self.begun.pop(wanted[0]).result()
