"""How times and memory are measured, and how they are compared.

Arms take turns in one process: times drift with the temperature of a GPU and with other programs
on a CPU, and a ratio of two arms that took turns hardly drifts. Two copies of one arm show how
much of a ratio is noise. Ceilings (the rate of a copy, and of a matrix product) are measured before
and after; if they moved, the figures between them are less reliable.

The peak memory of an arm is what it holds between steps (weights, optimizer state) plus the most
that a step allocates on top. On CUDA the allocator counts it. On a CPU torch's profiler reports
each allocation and release of torch's allocator, so what other libraries allocate is left out.
"""

import dataclasses
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")
COPY = " (copy)"
"""Ends the name of the second copy of the baseline."""
RESAMPLES = 10_000
REPEATS = 7
DRIFT = 0.02
"""A ceiling that moves by more than this between start and end is reported."""
LONGEST = 15
"""Kernels of a step that are named."""
METHODS = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "allocations of torch's CPU allocator, by its profiler",
}
"""Device -> how peak memory is measured."""


def say(line: str) -> None:
    """Print progress on stderr."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


def timed(step: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """Milliseconds of each of `count` calls.

    CUDA: between events on the stream. CPU: the process's own time if it has one thread, which
    other programs hardly change, else the wall's.
    """
    if device.type == "cuda":
        return _timed_on_gpu(step, count)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(count):
        started = clock()
        step()
        times.append(1e3 * (clock() - started))
    return times


def _timed_on_gpu(step: Callable[[], object], count: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def clock_name(device: torch.device) -> str:
    """What `timed` reads, for the reader of its figures."""
    if device.type == "cuda":
        return "CUDA events"
    return "process time" if torch.get_num_threads() == 1 else "wall time"


def take_turns(
    names: Sequence[str],
    rounds: int,
    measure: Callable[[str, int], T],
    warmup: int = 1,
    tell: bool = False,
    end: float = math.inf,
) -> dict[str, list[T]]:
    """Name -> what `measure(name, round)` gave in each round.

    The order rotates from round to round. The `warmup` rounds before the first are not kept.
    tell: print each round on stderr. end: by `time.monotonic`; after the first, no round starts
    later than that.
    """
    kept: dict[str, list[T]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        if number > 0 and time.monotonic() > end:
            break
        if tell and number >= 0:
            say(f"round {number + 1} of {rounds}")
        for name in rotated(names, number):
            found = measure(name, number)
            if number >= 0:
                kept[name].append(found)
    return kept


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items in the order of round number `by`: each is first equally often."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


@dataclass(frozen=True)
class Interval:
    """A median and the 95% interval of it under resampling of the rounds."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """The median of `values` and its bootstrap interval, the same for the same values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Interval(statistics.median(values), float(low), float(high))


def ratios(times: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Of the ratios of two arms' times, round by round."""
    return interval([time / base for time, base in zip(times, baseline, strict=True)])


def noise_floor(same: Interval) -> float:
    """How far from 1 a ratio may lie by chance: what the interval of two copies' ratio reaches."""
    return max(abs(same.low - 1), abs(same.high - 1))


def is_tie(ratio: Interval, floor: float) -> bool:
    """Whether a ratio is as near to 1 as two copies of one arm are from each other."""
    return abs(ratio.median - 1) <= floor


def against_baseline(
    times: Mapping[str, Sequence[float]], copy: Sequence[float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `noise` and the `ratios` of a report.

    times: arm -> its time in each round, the baseline first. copy: the times of a second copy of
    the baseline.
    """
    baseline, *others = times
    same = ratios(copy, times[baseline])
    floor = noise_floor(same)
    found = {}
    for name in others:
        ratio = ratios(times[name], times[baseline])
        found[f"{name}/{baseline}"] = dataclasses.asdict(ratio) | {"tie": is_tie(ratio, floor)}
    return {"arm": baseline, **dataclasses.asdict(same), "floor": floor}, found


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second of a large copy (read and written), operations per second of a product."""

    copy: float
    matmul: float


def ceilings(device: torch.device) -> Ceilings:
    """The device's, measured now."""
    return Ceilings(copy_rate(device), matmul_rate(device))


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second in a copy of 4 GiB on a GPU, of 256 MiB on a CPU."""
    size = 2**32 if device.type == "cuda" else 2**28
    source = torch.ones(size // 8, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def matmul_rate(device: torch.device) -> float:
    """Operations per second of a product of random matrices: 8,192³ in bf16, on a CPU 1,024³ in
    fp32."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * n**3 / _seconds(lambda: torch.mm(a, b, out=out), device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    timed(call, 2, device)
    return statistics.median(timed(call, REPEATS, device)) / 1e3


def drift(first: Ceilings, last: Ceilings) -> float:
    """The largest relative change of a ceiling."""
    return max(abs(last.copy / first.copy - 1), abs(last.matmul / first.matmul - 1))


def held_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of a model's parameters and buffers, and of its optimizer's state."""
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers())) + state_bytes(optimizer)


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def peak_of(call: Callable[[], object], device: torch.device) -> int:
    """The most bytes that `call` had allocated at any time, above what was there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(device) - before
    profiler = _profiled(call, [ProfilerActivity.CPU], memory=True)
    results = profiler.profiler.kineto_results if profiler.profiler else None
    assert results is not None, "the profiler has stopped without results"
    changes = [
        (event.start_ns(), event.nbytes())  # pyright: ignore[reportAttributeAccessIssue]
        for event in results.events()
        if event.name() == "[memory]"
    ]
    live = peak = 0
    for _, change in sorted(changes, key=lambda moment: moment[0]):
        live += change
        peak = max(peak, live)
    return peak


def kernels_of(call: Callable[[], object], device: torch.device) -> dict[str, Any] | None:
    """The CUDA kernels that `call` starts, copies and fills left out; None on a CPU.

    `calls` and `ms` are of all of them, `longest` of each of the LONGEST that take most time.
    """
    if device.type != "cuda":
        return None
    found: dict[str, dict[str, Any]] = {}
    for event in _on_gpu(call):
        if not event.name.startswith(("Memcpy", "Memset")):
            kernel = found.setdefault(event.name, {"name": event.name[:120], "calls": 0, "ms": 0.0})
            kernel["calls"] += 1
            kernel["ms"] += event.time_range.elapsed_us() / 1e3
    ordered = sorted(found.values(), key=lambda kernel: -kernel["ms"])
    return {
        "calls": sum(kernel["calls"] for kernel in ordered),
        "ms": sum(kernel["ms"] for kernel in ordered),
        "longest": ordered[:LONGEST],
    }


def own_time(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of `call`. CUDA: what its kernels take, without the time that Python needs to
    start them. CPU: as `timed` has it."""
    if device.type != "cuda":
        return statistics.median(timed(call, 3, device))
    return sum(event.time_range.elapsed_us() for event in _on_gpu(call)) / 1e3


def _on_gpu(call: Callable[[], object]) -> list[FunctionEvent]:
    events = _profiled(call, [ProfilerActivity.CUDA], memory=False).events()
    return [event for event in events or [] if event.device_type.name == "CUDA"]


def _profiled(
    call: Callable[[], object], activities: list[ProfilerActivity], memory: bool
) -> profile:
    # The profiler's library announces its start and its end on stderr unless it is turned off.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=activities, profile_memory=memory) as profiler:
        call()
        if ProfilerActivity.CUDA in activities:
            torch.cuda.synchronize()
    return profiler


def ratio_cells(ratio: Mapping[str, Any] | None) -> list[str]:
    """The median, "tie" behind it where it is one, and the interval."""
    if ratio is None:
        return ["1", ""]
    tie = " tie" if ratio["tie"] else ""
    return [f"{ratio['median']:.3f}{tie}", f"{ratio['low']:.3f}–{ratio['high']:.3f}"]


def si(rate: float) -> str:
    """A rate with three digits and G, T or P: "86.3 G"."""
    scaled = ((rate / scale, unit) for scale, unit in ((1e9, "G"), (1e12, "T"), (1e15, "P")))
    value, unit = next(pair for pair in scaled if pair[0] < 999.5 or pair[1] == "P")
    return f"{value:.3g} {unit}"


def size(count: float) -> str:
    """Bytes in KiB, MiB or GiB."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 10 * 2**20 else f"{count / 2**10:,.0f} KiB"
