"""stdout and stderr that are closed, full, or pipes whose reader has left.

What is said on stderr is for the eye: where it cannot be written it is dropped, and the work goes
on. What is written on stdout is a result: where it cannot be written, the command fails.
"""

import os
import select
import sys
from typing import Any, TextIO


def settle() -> None:
    """Give the program three standard streams, of which stderr never fails.

    One that is closed would be None, and its number would go to the next file that is opened: what
    a library prints would then be written into that file.
    """
    for number in range(3):
        if not is_open(number):
            # Nothing can be written to this one: for stdout that is an error when it is used.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    sys.stderr = Unfailing(sys.stderr)


def is_open(number: int) -> bool:
    """Whether a file descriptor is one of a file."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class Unfailing:
    """A text stream that drops what cannot be written, from the first failure on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        try:
            return self.stream.write(text)
        except OSError:
            drop(self.stream)
            return len(text)

    def flush(self) -> None:
        """Write what is left, or drop it."""
        try:
            self.stream.flush()
        except OSError:
            drop(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def drop(stream: TextIO) -> None:
    """Send what a stream still holds, and all that is written to it from now on, nowhere.

    Python would try again when it exits, and complain.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def reader_has_left(stream: TextIO) -> bool:
    """Whether a stream is a pipe or a socket that nobody reads any more."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
