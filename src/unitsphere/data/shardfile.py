"""One file of a prepared folder: checked when it is opened, and again whenever it is read.

It is opened anew for each read: a corpus may have more shards than a process may hold open. It is
not memory-mapped: a mapped file that is cut short ends the process without a word.
"""

from __future__ import annotations

import hashlib
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.data.manifest import FileEntry
from unitsphere.errors import UserError
from unitsphere.files import check_within, open_given

if TYPE_CHECKING:
    import numpy as np

END = 1 << 16
"""Bytes at either end of a file that are compared when it is opened."""

Identity = tuple[int, int, int, int]
"""Device, number, size and time of the last change: another one is another content."""


class ShardFile:
    """Numbers of `dtype`, little-endian; `len` is how many.

    Raises a `UserError` if the file is missing, or its size or its ends are not the manifest's.
    """

    def __init__(self, folder: Path, entry: FileEntry, dtype: str) -> None:
        import numpy as np

        self.path, self.entry = folder / entry.name, entry
        self.kind = np.dtype(dtype).newbyteorder("<")
        check_within(self.path, folder)
        with _open(self.path) as file:
            self.identity = _identity(file)
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                what = "truncated" if size < entry.bytes else "too long"
                raise UserError(
                    f"{self.path} is {what} ({size} bytes, the manifest says {entry.bytes}): "
                    "delete the folder and prepare again"
                )
            if entry.ends and ends_of(file) != entry.ends:
                raise _changed(self.path, "its first or last bytes differ")
        if entry.bytes % self.kind.itemsize:
            raise UserError(f"{self.path} is damaged: it is no whole number of ids")

    def __len__(self) -> int:
        return self.entry.bytes // self.kind.itemsize

    def read(self, start: int, stop: int) -> np.ndarray:
        """Numbers [start, stop), which must be there."""
        import numpy as np

        width = self.kind.itemsize
        with _open(self.path) as file:
            if _identity(file) != self.identity:
                raise UserError(
                    f"{self.path} was changed while it was in use: restore it, and the same "
                    "command goes on"
                )
            data = os.pread(file.fileno(), (stop - start) * width, start * width)
        if len(data) != (stop - start) * width:
            raise UserError(f"{self.path} was cut short while it was in use: restore it")
        return np.frombuffer(data, self.kind)

    def verify(self) -> None:
        """Read the whole file and compare its sha256 with the manifest's."""
        with _open(self.path) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.entry.sha256:
                raise _changed(self.path, "its sha256 differs")


def ends_of(file: FileIO) -> str:
    """sha256 of a file's first END bytes and its last."""
    size = os.fstat(file.fileno()).st_size
    last = max(size - END, 0)
    data = os.pread(file.fileno(), END, 0) + os.pread(file.fileno(), END, last)
    return hashlib.sha256(data).hexdigest()


def _identity(file: FileIO) -> Identity:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: Path) -> FileIO:
    if not path.exists():
        raise UserError(f"{path} is missing: delete the folder and prepare again")
    return open_given(path)


def _changed(path: Path, how: str) -> UserError:
    return UserError(
        f"{path} was changed since it was prepared ({how} from the manifest's): delete the folder "
        "and prepare again"
    )
