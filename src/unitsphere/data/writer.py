"""Writes prepared folders: shard files of a bounded size, and a folder that appears when complete.

`SplitWriter` writes the token stream of a split and where its documents start. `workspace` and
`publish` make a folder visible complete or not at all, made by one process at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unitsphere.data.shards import Counts, FileEntry, Split, ends_of
from unitsphere.errors import UserError
from unitsphere.files import is_at, reason, refuse_link, sync

if TYPE_CHECKING:
    import numpy as np

SHARD_TOKENS = 1 << 26
"""Most tokens in a shard file."""
MANY = 256
"""Pieces that are collected before they are written: a write costs more than a short document."""


class HashedFile:
    """A file written from start to end; its size and sha256 are computed meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._hash = path, 0, hashlib.sha256()
        try:
            self._handle = path.open("xb")
        except OSError as error:
            raise _cannot_write(path, error) from error

    def write(self, data: bytes) -> None:
        try:
            self._handle.write(data)
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        self._hash.update(data)
        self._size += len(data)

    def close(self) -> None:
        """Flush the file to the disk."""
        try:
            with self._handle as handle:
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def entry(
        self,
        holds: Literal["tokens", "documents", "tokenizer"],
        split: Literal["train", "val", "all"],
    ) -> FileEntry:
        """The file's line in the manifest."""
        with self._path.open("rb", buffering=0) as file:
            ends = ends_of(file)
        digest = self._hash.hexdigest()
        return FileEntry(self._path.name, holds, split, self._size, digest, ends)


def write_file(path: Path, data: bytes) -> HashedFile:
    """Write a whole file and flush it to the disk."""
    file = HashedFile(path)
    file.write(data)
    file.close()
    return file


class SplitWriter:
    """Receives a split's documents in order: `begin_document`, then `write` for each piece."""

    def __init__(
        self,
        folder: Path,
        split: Split,
        dtype: str,
        separator: int,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        import numpy as np

        self._folder, self._limit = folder, shard_tokens
        self._split: Split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._separator = np.array([separator])
        self._waiting: list[np.ndarray] = []
        self._tokens = self._bytes = self._documents = 0
        self._starts = HashedFile(folder / f"{split}-documents.bin")
        self._shard: HashedFile | None = None
        self._room = 0
        self._entries: list[FileEntry] = []

    def begin_document(self) -> None:
        """Start a document with its separator."""
        self._starts.write(struct.pack("<Q", self._tokens))
        self._documents += 1
        self.write(self._separator, 0)

    def write(self, tokens: np.ndarray, n_bytes: int) -> None:
        """Add the tokens of `n_bytes` bytes of text."""
        self._bytes += n_bytes
        self._tokens += len(tokens)
        self._waiting.append(tokens)
        if len(self._waiting) >= MANY:
            self._flush()

    def close(self) -> tuple[Counts, list[FileEntry]]:
        """Flush everything to the disk; returns the split's part of the manifest."""
        self._flush()
        self._close_shard()
        self._starts.close()
        self._entries.append(self._starts.entry("documents", self._split))
        return Counts(self._tokens, self._bytes, self._documents), self._entries

    def _flush(self) -> None:
        import numpy as np

        if not self._waiting:
            return
        tokens = np.concatenate(self._waiting, dtype=self._dtype, casting="unsafe")
        self._waiting.clear()
        while len(tokens):
            if not self._room:
                self._next_shard()
            assert self._shard is not None
            part, tokens = tokens[: self._room], tokens[self._room :]
            self._shard.write(part.tobytes())
            self._room -= len(part)

    def _next_shard(self) -> None:
        self._close_shard()
        name = f"{self._split}-{len(self._entries):05}.bin"
        self._shard, self._room = HashedFile(self._folder / name), self._limit

    def _close_shard(self) -> None:
        if self._shard:
            self._shard.close()
            self._entries.append(self._shard.entry("tokens", self._split))


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; nothing was kept, free some space")


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """An empty folder next to `out`, locked while in use; `publish` it when it is complete.

    A second process waits here until the first is done. What is not published is removed; what a
    killed process left is removed by the next.
    """
    partial = out.parent / f".{out.name}.partial"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(out)  # a folder cannot be renamed over it
        refuse_link(partial)
        lock = _lock(partial)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise UserError(f"cannot write to {out.parent}: {reason(error)}") from error
    try:
        _empty(partial)
        try:
            yield partial
        finally:
            if is_at(lock, partial):  # Not published.
                shutil.rmtree(partial)
    finally:
        os.close(lock)


def publish(partial: Path, out: Path) -> None:
    """Make a complete workspace visible as `out`, which is absent or empty."""
    sync(partial)
    try:
        partial.rename(out)
    except OSError as error:
        raise UserError(f"cannot move what was made to {out}: {error.strerror}") from error
    sync(out.parent)


def _empty(folder: Path) -> None:
    """Remove the files that a killed process left in a workspace; it makes no folders."""
    for left in folder.iterdir():
        try:
            left.unlink()
        except OSError as error:
            raise UserError(
                f"cannot remove {left}, which unitsphere did not make ({reason(error)}): "
                f"move {folder} away"
            ) from error


def _lock(folder: Path) -> int:
    """A descriptor that holds the lock on `folder`, which exists and was not replaced."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # The process before us has just published or removed it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, folder):
            return descriptor
        os.close(descriptor)
