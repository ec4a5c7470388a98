"""How much memory a step needs at its peak, and how many kernels it starts.

The peak of an arm is what it holds between steps (weights, optimizer state) and what a step
allocates on top, at most. On CUDA the allocator counts; on a CPU torch's profiler reports each
allocation and release of torch's allocator, so what libraries take for themselves is left out.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

METHODS = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "allocations of torch's CPU allocator, by its profiler",
}


def held_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of a model's parameters and buffers, and of its optimizer's state."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


def kernels_of(call: Callable[[], object], device: torch.device) -> int | None:
    """How many CUDA kernels `call` starts, copies and fills left out; None on a CPU."""
    if device.type != "cuda":
        return None
    events = _profiled(call, [ProfilerActivity.CUDA], memory=False).events()
    return sum(
        event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
        for event in events or []
    )


def _profiled(
    call: Callable[[], object], activities: list[ProfilerActivity], memory: bool
) -> profile:
    # The profiler's library announces its start and its end on stderr unless told not to.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=activities, profile_memory=memory) as profiler:
        call()
        if ProfilerActivity.CUDA in activities:
            torch.cuda.synchronize()
    return profiler
