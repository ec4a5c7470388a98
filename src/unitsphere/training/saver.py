"""Saves a run's checkpoints while the run goes on.

The tensors are copied to the host's memory, where the next step cannot change them, and a thread
writes the copy. One checkpoint is written at a time. What goes wrong in the thread ends the run.
"""

import sys
import time
from pathlib import Path
from threading import Thread
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.training import checkpoint
from unitsphere.training.checkpoint import State
from unitsphere.training.parallel.layout import SINGLE, Layout
from unitsphere.training.tensors import named_tensors


class Writing(Thread):
    """One checkpoint on its way to the disk; `failure` is what the disk refused."""

    def __init__(
        self, root: Path, state: State, tensors: dict[str, Tensor], layout: Layout
    ) -> None:
        # A daemon: a second Ctrl-C does not wait for it, and what it leaves is no checkpoint.
        super().__init__(name=f"saver of step {state.step}", daemon=True)
        self.root, self.state, self.tensors, self.layout = root, state, tensors, layout
        self.written: Path | None = None
        self.failure: UserError | None = None

    def run(self) -> None:
        """Write; any other exception is Python's to show, and `result` tells of it."""
        try:
            self.written = checkpoint.write(self.root, self.state, self.tensors, self.layout)
        except UserError as error:
            self.failure = error
        self.tensors = {}

    def result(self) -> Path:
        """The checkpoint's folder, when it is on the disk; raises what it failed with."""
        self.join()
        if self.failure is not None:
            raise self.failure
        if self.written is None:
            raise RuntimeError(f"the {self.name} died of the exception above")
        return self.written


class Saver:
    """Saves under `root` and deletes what is too old. Close it, or use it as a context manager.

    asynchronous: `save` returns when the copy is made; else when it is on the disk.
    longest: seconds that the slowest checkpoint took, from the call until it was known to be there.
    """

    def __init__(
        self,
        root: Path,
        keep_last: int,
        keep_every: int | None,
        asynchronous: bool = True,
        layout: Layout = SINGLE,
    ) -> None:
        self.root, self.keep_last, self.keep_every = root, keep_last, keep_every
        self.asynchronous, self.longest, self.began = asynchronous, 0.0, 0.0
        self.stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        self.writing: Writing | None = None
        self.layout, self.layout_of_thread = layout, layout.aside()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the thread, unless a second Ctrl-C asks to stop at once."""
        if kind is None:
            self.wait()
        elif not issubclass(kind, KeyboardInterrupt) and self.writing is not None:
            self.writing.join()
            if self.writing.failure is not None:  # the run ends by another error
                print(f"and {self.writing.failure}", file=sys.stderr)

    def save(self, state: State, model: nn.Module, optimizer: Optimizer) -> None:
        """Save a checkpoint, when the one before is on the disk.

        Raises UserError if that one, or without `asynchronous` this one, cannot be written.
        """
        self.wait()
        self.began = time.monotonic()
        staged = self.stager.stage(named_tensors(model, optimizer))
        assert isinstance(staged, dict)
        self.writing = Writing(self.root, state, staged, self.layout_of_thread)
        self.writing.start()
        if not self.asynchronous:
            self.wait()

    def check(self) -> None:
        """`wait`, unless the thread is still at work in some process."""
        if self.writing is not None and not self.layout.any(self.writing.is_alive()):
            self.wait()

    def wait(self) -> None:
        """Wait until what was saved is on the disk; raises UserError if it could not be."""
        writing, self.writing = self.writing, None
        if writing is not None:
            written = writing.result()
            if self.layout.first:
                checkpoint.prune(written, self.keep_last, self.keep_every)
            self.longest = max(self.longest, time.monotonic() - self.began)
