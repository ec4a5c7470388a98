"""Saves a run's checkpoints while the run continues.

The tensors are copied to the host's memory, where the next step cannot change them, and a thread
writes the copy. One checkpoint is written at a time. What goes wrong in the thread ends the run.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.files import refuse_link, sync
from unitsphere.training.checkpoint.store import (
    MARKER,
    STATE,
    State,
    fingerprints,
    folder_of,
    hide,
    prune,
    remove,
)
from unitsphere.training.checkpoint.tensors import dcp_error, named_tensors, write_named
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.distributed.processes import on_all_ranks, on_ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.staging import BlockingAsyncStager


def write(root: Path, state: State, tensors: dict[str, Tensor], layout: Layout = SINGLE) -> Path:
    """Write the checkpoint of `state.step` under `root`; its folder, complete and on the disk.

    tensors: what `tensors.named_tensors` gave, or a copy of it. Of several processes each writes
    its own, and the first all else: call it in all of them. Raises UserError if it cannot be
    written; nothing of it is left then, and earlier checkpoints are as they were.
    """
    target = folder_of(root, state.step)
    aside = root / f".writing-{target.name}"
    try:
        on_ranks(layout, layout.first, telling(target, partial(make_empty, aside)))
        on_all_ranks(layout, telling(target, partial(write_shards, aside, tensors, layout)))
        on_ranks(layout, layout.first, telling(target, partial(complete, aside, target, state)))
    except UserError:
        if layout.first:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def make_empty(folder: Path) -> None:
    """Make an empty folder, whatever was there."""
    for place in (folder.parent, folder):
        refuse_link(place)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def write_shards(aside: Path, tensors: dict[str, Tensor], layout: Layout) -> None:
    """Write this process's tensors, and wait until the disk has them."""
    before = set(aside.iterdir())
    write_named(aside, tensors, layout)
    for path in set(aside.iterdir()) - before:
        sync(path)


def complete(aside: Path, target: Path, state: State) -> None:
    """Write everything but tensors, the marker last, and give the checkpoint its name."""
    write_synced(aside / STATE, json.dumps(to_dict(state)))
    write_synced(aside / MARKER, json.dumps(fingerprints(aside)))
    sync(aside)
    refuse_link(target)
    before = hide(target)  # a damaged one, or one of a step that is finished only now
    aside.rename(target)
    sync(target.parent)
    if before is not None:  # not earlier: deleting takes time, and it may be the only one
        remove(before)


def telling(target: Path, action: Callable[[], None]) -> Callable[[], None]:
    """Returns `action` with the system's refusals as a `UserError` about the checkpoint."""

    def call() -> None:
        try:
            action()
        except (OSError, dcp_error()) as error:
            raise UserError(
                f"cannot save checkpoint {target}: {os_error(error).strerror}; earlier checkpoints "
                "are kept, and when that is fixed the same command resumes"
            ) from error

    return call


def os_error(error: "OSError | CheckpointException") -> OSError:
    """Returns the system's refusal behind `error`; raises any other error again."""
    if isinstance(error, OSError):
        return error
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError):
            return cause
    raise error


def write_synced(path: Path, text: str) -> None:
    """Write a text file and wait until the disk has it."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class Writing(Thread):
    """A thread that writes one checkpoint; `failure`: the disk refused, or another rank is gone."""

    def __init__(
        self, root: Path, state: State, tensors: dict[str, Tensor], layout: Layout
    ) -> None:
        # A daemon: a second Ctrl-C does not wait for it, and what it leaves is not complete.
        super().__init__(name=f"saver of step {state.step}", daemon=True)
        self.root, self.state, self.tensors, self.layout = root, state, tensors, layout
        self.written: Path | None = None
        self.failure: UserError | RuntimeError | None = None

    def run(self) -> None:
        """Write the checkpoint; `result` reports what went wrong."""
        try:
            self.written = write(self.root, self.state, self.tensors, self.layout)
        except (UserError, RuntimeError) as error:  # RuntimeError: a collective's, among others
            self.failure = error
        self.tensors = {}

    def result(self) -> Path:
        """Returns the checkpoint's folder when it is on the disk; raises what it failed with."""
        self.join()
        if self.failure is not None:
            raise self.failure
        if self.written is None:
            raise RuntimeError(f"the {self.name} ended with the exception above")
        return self.written


class Saver:
    """Saves under `root` and deletes what is too old. Close it, or use it as a context manager.

    asynchronous: `save` returns when the copy is made; else when it is on the disk.
    longest: seconds that the slowest checkpoint took, from the call until it was known to be saved.
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
        self.writing: Writing | None = None
        self.layout, self.layout_of_thread = layout, layout.aside()

    @cached_property
    def stager(self) -> "BlockingAsyncStager":
        """Copies tensors to the host's memory."""
        from torch.distributed.checkpoint.staging import BlockingAsyncStager  # slow to import

        return BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Wait for the thread, unless a second Ctrl-C stops the run at once."""
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
        """Wait if the thread has finished on every rank; raises what it failed with."""
        if self.writing is not None and not self.layout.any(self.writing.is_alive()):
            self.wait()

    def wait(self) -> None:
        """Wait until what was saved is on the disk; raises UserError if it could not be."""
        writing, self.writing = self.writing, None
        if writing is not None:
            written = writing.result()
            if self.layout.first:
                prune(written, self.keep_last, self.keep_every)
            self.longest = max(self.longest, time.monotonic() - self.began)
