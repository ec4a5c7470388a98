"""The processes of a run, as torchrun starts them, and what they must know of each other.

A mistake on one rank only would leave the others waiting in their next collective. So what may fail
before training is done through `on_all_ranks` or `on_first`, after which all ranks continue or all
raise `SharedError`, with the rank where it went wrong. Messages are JSON text, never pickles.

torch ends a collective that waits longer than `parallel.timeout`, but says only that it waited.
Each process that it ends writes its name into the store that all share; the ranks that write none
hang or have died (`watched`). NCCL ends the process itself; its own report names the collective.

Which process is slower than the others is found without making any of them wait (`Stragglers`). The
others wait for a slow process in the next collective, so the length of a step tells nothing. What a
process does between two collectives is its own: it loads its rows, and where the weights are whole
(DDP) it computes the loss of each micro-batch. Sharded weights and tensor parallel communicate
within the loss, so there only the loading counts.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

from unitsphere.errors import UserError
from unitsphere.training.device import local_device, local_rank
from unitsphere.training.distributed.layout import SINGLE, Layout, ParallelConfig

T = TypeVar("T")


class SharedError(UserError):
    """A mistake that all ranks raise together; one of them prints it."""


def gather(layout: Layout, message: Any) -> list[Any]:
    """Every process's JSON-able message, by rank."""
    if layout.world == 1:
        return [message]
    data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(layout.world)]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=layout.group)
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: len(data)] = data
    texts = [torch.zeros_like(padded) for _ in range(layout.world)]
    dist.all_gather(texts, padded, group=layout.group)
    return [
        json.loads(bytes(text[: int(size)].tolist()))
        for text, size in zip(texts, sizes, strict=True)
    ]


def on_all_ranks(layout: Layout, action: Callable[[], T]) -> T:
    """`action()` in every process; raises SharedError in all if one raised UserError or OSError.

    A single process raises its own.
    """
    return on_ranks(layout, True, action)[0]


def on_ranks(layout: Layout, here: bool, action: Callable[[], T]) -> list[T]:
    """[`action()`] on the ranks that are `here`, [] on the others; errs as `on_all_ranks`."""
    if layout.world == 1:
        return [action()] if here else []
    results, mistake = [], None
    try:
        if here:
            results.append(action())
    except UserError as error:
        mistake = str(error)
    except OSError as error:  # a file that may not be read on one machine
        mistake = f"cannot use {error.filename or 'a file'}: {error.strerror}"
    mistakes = gather(layout, mistake)
    found = [(rank, text) for rank, text in enumerate(mistakes) if text is not None]
    if found:
        rank, text = found[0]
        everyone = [text] * layout.world == mistakes
        raise SharedError(text if everyone else f"rank {rank} of {layout.world}: {text}")
    return results


def on_first(layout: Layout, action: Callable[[], Any]) -> Any:
    """What the first process's `action()` returned, JSON-able, in all of them."""
    found = on_ranks(layout, layout.first, action)
    return gather(layout, found)[0][0]


def local_first(layout: Layout, action: Callable[[], T]) -> T:
    """`action()` everywhere, but on each machine in its first process before the others.

    What it prepares on a disk is then there for the others.
    """
    leads = layout.local_rank == 0
    return (on_ranks(layout, leads, action) + on_ranks(layout, not leads, action))[0]


def check_alike(layout: Layout, what: str, facts: Mapping[str, Any]) -> None:
    """Raise SharedError in all processes, naming rank and difference, unless all have one `facts`.

    `facts`: setting -> JSON-able value; `what` names them as a whole.
    """
    found = gather(layout, dict(facts))
    for rank, other in enumerate(found):
        # As text: NaN is not equal to itself.
        odd = [key for key in found[0] | other if repr(other.get(key)) != repr(found[0].get(key))]
        if odd:
            lines = [f"{key}: {found[0].get(key)!r} -> {other.get(key)!r}" for key in odd[:3]]
            raise SharedError(
                f"rank {rank} has another {what} than rank 0 ({'; '.join(lines)}): "
                "start all processes with the same command, on the same files"
            )


TELL = 60
"""Seconds for which a process with a mistake waits for the others in order to tell them."""
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl"}


@contextmanager
def processes(config: ParallelConfig, device: str) -> Iterator[Layout]:
    """This process's place among those that torchrun started, with no degrees yet.

    A process group that is there already is used and left. A single process has none. A collective
    that fails within because a process hangs or died ends in a `UserError` that names it.
    """
    if dist.is_initialized():
        layout = Layout(dist.get_rank(), dist.get_world_size(), local_rank())
        with watched(layout):
            yield layout
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Layout()
        return
    if "MASTER_ADDR" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {world}, but nothing says where the others are: start the processes "
            "by torchrun --nproc-per-node N -m unitsphere train …"
        )
    try:
        kind = local_device(device).type
    except UserError as mistake:
        tell_others(mistake)
        raise
    with joined(kind, config.timeout) as layout:
        yield layout


@contextmanager
def joined(kind: str, timeout: int) -> Iterator[Layout]:
    """This process's place once all processes are there; `timeout` in seconds."""
    dist.init_process_group(BACKENDS.get(kind, "gloo"), timeout=timedelta(seconds=timeout))
    layout = Layout(dist.get_rank(), dist.get_world_size(), local_rank())
    try:
        with watched(layout):
            yield layout
    finally:
        dist.destroy_process_group()


def limit_waits(layout: Layout, timeout: int) -> None:
    """Let all groups of the layout's meshes wait `timeout` seconds, as the group of all does.

    torch gives half an hour to those of some of the processes, which HSDP and FSDP2 × TP have.
    """
    for mesh in (layout.mesh, layout.data_mesh):
        for group in [] if mesh is None else mesh.get_all_groups():
            if group is not dist.group.WORLD:  # whoever made that one has set its time
                _set_pg_timeout(timedelta(seconds=timeout), group)


def tell_others(mistake: UserError | OSError) -> None:
    """Tell the other processes of a run about a mistake that this one made before it joined them.

    They would wait for it until `parallel.timeout`. Does nothing where there are none.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        return

    def fail() -> None:
        raise mistake

    kind = "cuda" if torch.cuda.is_available() else "cpu"  # as the others probably have it
    # UserError: all know. DistError: no other process has come within the time.
    with suppress(UserError, dist.DistError), joined(kind, TELL) as layout:
        on_all_ranks(layout, fail)


GRACE = timedelta(seconds=10)
"""For the others to come to the same end: once one gives up, its connections close."""


@contextmanager
def watched(layout: Layout) -> Iterator[None]:
    """Within: a collective that fails because of other processes ends in a `UserError` about them.

    What fails for another reason is raised as it is.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo's own errors are known by their source files.
        of_collective = isinstance(error, dist.DistError) or "gloo" in str(error)
        if layout.world == 1 or not of_collective:
            raise
        gone = missing(layout)
        if not gone:
            raise
        who = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))}"
        raise UserError(
            f"rank {layout.rank} got no answer from {who} of {layout.world}, which has hung or "
            "died: see its last output. Complete checkpoints are kept: the same command resumes"
        ) from error


def missing(layout: Layout) -> list[int]:
    """Returns the ranks that have not written their name within the grace period."""
    names = {rank: f"unitsphere/waited/{rank}" for rank in range(layout.world)}
    store = _get_default_store()
    try:
        store.set(names[layout.rank], "timed out")
        store.wait(list(names.values()), GRACE)
    except dist.DistStoreError:  # the time is over, and a name is missing
        return [rank for rank, name in names.items() if not store.check([name])]
    except dist.DistNetworkError:  # the process that holds the store is gone
        return [0]
    return []


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
