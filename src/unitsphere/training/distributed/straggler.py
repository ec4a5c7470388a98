"""Which process is slower than the others, found without making any of them wait.

The others wait for a slow process in the next collective, so the length of a step tells nothing.
What a process does between two collectives is its own: it loads its rows, and where the weights
are whole (DDP) it computes the loss of each micro-batch. Sharded weights and tensor parallel
communicate within the loss, so there only the loading counts.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.distributed.processes import gather

SLOW = 1.5
"""A process is told of that needs this many times the median of the others, …"""
COSTS = 0.1
"""… if what it needs more is this share of the time, too."""


class LocalTime:
    """The time that this process has needed by itself; a single process measures nothing.

    On a GPU events are left in its stream and read when a record is due, after the losses.
    """

    def __init__(self, layout: Layout = SINGLE) -> None:
        self.measures = layout.world > 1
        self.whole = layout.degrees.dp_shard == layout.degrees.tp == 1
        self.seconds = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Within: the process loads its part of a batch."""
        start = time.perf_counter()
        yield
        if self.measures:
            self.seconds += time.perf_counter() - start

    @contextmanager
    def computing(self, device: torch.device) -> Iterator[None]:
        """Within: the process computes a loss on `device`."""
        if not (self.measures and self.whole):
            yield
        elif device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self.events.append((start, end))
        else:
            with self.loading():
                yield

    def take(self) -> float:
        """Seconds since the last call; the device must be done with what was measured."""
        seconds = self.seconds + sum(start.elapsed_time(end) for start, end in self.events) / 1000
        self.seconds = 0.0
        self.events.clear()
        return seconds


class Stragglers:
    """Compares the processes whenever a record is due; `say` reports one that is slow."""

    def __init__(self, layout: Layout, local: LocalTime, say: Callable[[str], None]) -> None:
        self.layout, self.local, self.say = layout, local, say
        self.warm = False
        self.told: int | None = None

    def compare(self, seconds: float) -> dict[str, float]:
        """For a record: the slowest rank, and its own time ÷ the median of the others'.

        `seconds`: the length of the time since the last record. All processes call this together.
        The first time, with what compiling and caches take, gives nothing; nor does one process.
        """
        if self.layout.world == 1:
            return {}
        times = gather(self.layout, self.local.take())
        if not self.warm:
            self.warm = True
            return {}
        rank, ratio, costs = slowest(times)
        slow = ratio > SLOW and costs > COSTS * seconds
        if slow and rank != self.told:
            self.say(
                f"rank {rank} of {self.layout.world} is slow: it needs {ratio:.1f} times "
                f"as long as the others, which wait for it {costs / seconds:.0%} of the time"
            )
        self.told = rank if slow else None
        return {"slowest_rank": rank, "slowest_ratio": ratio}


def slowest(times: list[float]) -> tuple[int, float, float]:
    """The rank of the longest time, how many times the median of the others it is, and how far
    above."""
    rank = max(range(len(times)), key=times.__getitem__)
    usual = median(times[:rank] + times[rank + 1 :])
    return rank, times[rank] / usual, times[rank] - usual
