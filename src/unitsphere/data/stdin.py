"""Standard input as a temporary file: a source is read more than once."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.files import reason

CHUNK = 1 << 20
"""Bytes read at a time."""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder that lasts as long as the context; a `UserError` where there is no room for one."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise _no_room(error) from error
    with folder as path:
        yield path


def keep_standard_input(path: Path) -> None:
    """Copy standard input to a new file, in chunks."""
    if sys.stdin is None:
        raise UserError("standard input is closed: pipe the text in")
    try:
        with path.open("xb") as handle:
            while chunk := _read_standard_input():
                handle.write(chunk)
    except OSError as error:
        raise _no_room(error) from error


def _read_standard_input() -> bytes:
    try:
        return sys.stdin.buffer.read(CHUNK)
    except OSError as error:
        raise UserError(f"cannot read standard input: {reason(error)}") from error


def _no_room(error: OSError) -> UserError:
    """The error of a folder for temporary files that takes nothing: the output is not to blame."""
    return UserError(
        f"cannot keep standard input in {tempfile.tempdir or 'a temporary folder'}: "
        f"{reason(error)}; set TMPDIR to a folder with room, or write the text to a file"
    )
