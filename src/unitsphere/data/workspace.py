"""A folder that appears complete or not at all, made by one process at a time."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.files import reason, refuse_link, sync


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, locked while in use, to be handed to `publish` when complete.

    A second process waits here until the first is done. What is not published is removed; what a
    killed process left is removed by the next.
    """
    partial = out.parent / f".{out.name}.partial"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(partial)
        lock = _lock(partial)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise UserError(f"cannot write to {out.parent}: {reason(error)}") from error
    try:
        _empty(partial)
        try:
            yield partial
        finally:
            if _is_at(lock, partial):  # Not published.
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
                f"cannot remove {left}, which nothing here has made ({reason(error)}): "
                f"move {folder} away"
            ) from error


def _lock(folder: Path) -> int:
    """A descriptor that holds the lock on `folder`, which exists and is still at its place."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # The process before us has just published or removed it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, folder):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        return False
