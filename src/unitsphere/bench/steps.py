"""The training code's own step over random tokens, and the clock around it."""

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.kernels.registry import Mode, using_kernels
from unitsphere.training.config import RunConfig
from unitsphere.training.plan import build_job
from unitsphere.training.step import Job, update

POOL = 4
"""Batches that are drawn beforehand and used in turn: drawing is not part of a step."""


class RandomBatches:
    """Uniform random tokens, never zeros alone: a GPU multiplies zeros faster than numbers.

    With `apart` token 0 begins a document, so that one has as many tokens as there are entries in
    the vocabulary, on average.
    """

    def __init__(
        self, vocabulary: int, context: int, rows: int, seed: int = 0, apart: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (POOL, rows, context + 1)
        self.windows = torch.randint(vocabulary, shape, generator=generator)
        self.apart = apart

    def batch(self, step: int) -> Batch:
        """Inputs and targets of a step, int64 [rows, context] each."""
        return self.rows(step, 0, self.windows.shape[1])

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of them from `first` on."""
        windows = self.windows[step % POOL, first : first + count]
        inputs = windows[:, :-1].contiguous()
        documents = (inputs == 0).cumsum(1) if self.apart else None
        return Batch(inputs, windows[:, 1:].contiguous(), documents=documents)


class Stepper:
    """A run of an arm, one step at a time, as `unitsphere train` makes them."""

    def __init__(self, config: RunConfig, kernels: Mode = "auto") -> None:
        rows = config.train.batch_tokens // config.data.context
        data = config.data
        batches = RandomBatches(
            config.model.vocab_size, data.context, rows, apart=data.document_mask
        )
        self.job: Job = build_job(config, batches)
        self.kernels: Mode = kernels
        self.done = 0

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.job.model.device

    def step(self) -> Tensor:
        """One update; its loss."""
        with using_kernels(self.kernels):
            loss, _, _ = update(self.job, self.done)
        self.done += 1
        return loss


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
        begun = clock()
        step()
        times.append(1e3 * (clock() - begun))
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
