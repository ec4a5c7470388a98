"""Safe reading and atomic writing of files that somebody else may have made.

A run folder may come from somebody whom the user does not trust. Its files are read only if they
are regular files, up to a size, and only if no link leads out of the folder. Nothing is written
through a link. A path that the user names on the command line may be a link.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO, TextIOWrapper
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from unitsphere.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

JSON_LIMIT = 256 << 20
"""Most bytes of a file that is parsed as a whole: tokenizers of 250k entries take about 40 MB."""


def open_given(path: Path, within: Path | None = None) -> FileIO:
    """Opens a regular file for reading bytes, unbuffered; a one-line `UserError` for all else.

    within: the folder that the file must be in once links are followed. A FIFO or a device is
    refused: reading it might never end.
    """
    try:
        if within is not None:
            check_within(path, within)
        # Without O_NONBLOCK opening a FIFO waits for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"cannot read {path}: it is not a regular file")
    return FileIO(handle, "rb", closefd=True)


def read_bytes(path: Path, within: Path | None = None, limit: int = JSON_LIMIT) -> bytes:
    """All bytes of a file that `open_given` opens; a `UserError` if they are more than `limit`."""
    with open_given(path, within) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UserError(
                f"cannot read {path}: it has {size:,} bytes, and at most {limit:,} are read"
            )
        try:
            return file.readall()
        except OSError as error:
            raise UserError(f"cannot read {path}: {reason(error)}") from error


def read_text(path: Path, within: Path | None = None, limit: int = JSON_LIMIT) -> str:
    """`read_bytes` as UTF-8 text."""
    try:
        return read_bytes(path, within, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: it is not UTF-8 (byte {error.start})") from error


def check_given(path: Path, within: Path | None = None) -> Path:
    """`path`, if `open_given` would open it: for libraries that open a path themselves."""
    open_given(path, within).close()
    return path


def check_within(path: Path, folder: Path) -> None:
    """Raise UserError if a link leads from `path` to a place outside `folder`."""
    # Path.resolve raises RuntimeError for a link to itself; here opening it says so.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UserError(
            f"{path} is a link out of {folder}, which is not followed: put the file itself there"
        )


def own_folder(path: Path) -> Path:
    """The folder `path`, made if needed; a `UserError` if it is a link or not a folder.

    For folders inside a run or a study, which only this package makes.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(path)
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {reason(error)}") from error
    return path


def refuse_link(path: Path) -> None:
    """Raise UserError if `path` itself is a link: writing or deleting there would be elsewhere."""
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through links: remove it")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a new file next to `path`, sync it, rename it over `path`: no reader sees half of it.

    A link at `path` is replaced by the file; what it pointed to stays as it is. Raises OSError.
    """
    with aside(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """Write one safetensors file, complete or absent; a `UserError` if the disk takes no more."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with aside(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise UserError(f"cannot write {path}: {error}") from error
        temporary.chmod(mode)  # safetensors writes files that only their owner may read


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A new empty file next to `path`, with its suffix; it is renamed to `path` if all goes well.

    Its name is random, so nobody can have put a file or a link there before.
    """
    # A name has at most 255 bytes: what is added to a long one must fit.
    temporary = path.with_name(f".{path.stem[:50]}.writing-{token_hex(8)}{path.suffix[:10]}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # writing and syncing name no file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def append_to(path: Path) -> TextIOWrapper:
    """A regular file, made if needed, open for appending UTF-8 text; a `UserError` for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    refuse_link(path)
    handle = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"cannot write to {path}: it is not a regular file")
    return open(handle, "a", encoding="utf-8")


def is_at(descriptor: int, path: Path, *, follow: bool = False) -> bool:
    """Whether an open file or folder is still the one at `path`: it may have been replaced.

    follow: `path` may be a link to it.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=follow))
    except FileNotFoundError:
        return False


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Hold the file `path`, made if needed, to read it and then replace it; others wait here."""
    while True:
        with append_to(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_at(file.fileno(), path):  # else the process before us has replaced it
                yield
                return


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason(error: OSError | ValueError) -> str:
    """The system's message, without numbers and paths."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
