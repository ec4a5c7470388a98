"""What verbs print, and the streams that they print to.

Results go to stdout: one JSON document, or a table that fits the terminal. If one cannot be
written, the command fails. Progress goes to stderr: if it cannot be written it is dropped, and the
work continues.
"""

import os
import re
import select
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from unitsphere.config import json_text
from unitsphere.report.render.text import rich_table


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    text = json_text(document)
    # JSON escapes only control characters up to 0x1f; some terminals obey those from 0x7f too.
    print(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on stdout; columns after the first `left` are aligned to the right."""
    from rich.console import Console

    # A file or a pipe has no width to fit.
    width = None if sys.stdout.isatty() else 200
    console = Console(highlight=False, width=width)
    # Printed by Python: rich ends the program if a pipe's reader has left.
    with console.capture() as rendered:
        console.print(rich_table(columns, rows, left))
    print(rendered.get(), end="")


def print_piece(text: str) -> None:
    """A model's text; on a terminal without control characters, which could garble it."""
    if sys.stdout.isatty():
        text = "".join(
            "\N{REPLACEMENT CHARACTER}"
            if unicodedata.category(c) == "Cc" and c not in "\n\t"
            else c
            for c in text
        )
    print(text, end="", flush=True)


def hours(count: float) -> str:
    """Hours with two digits, in minutes below one, and in seconds below a minute."""
    if count < 1 / 60:
        said, unit = f"{3600 * count:.2g}", "second"
    elif count < 1:
        said, unit = f"{60 * count:.2g}", "minute"
    else:
        said, unit = f"{count:.2g}" if count < 99.5 else f"{count:,.0f}", "hour"
    return f"{said} {unit}" if said == "1" else f"{said} {unit}s"


LINE_EVERY = 10.0
"""Seconds between two lines of progress."""


def progress(what: str) -> Callable[[int], None]:
    """Says on stderr now and then how many tokens have been scored."""
    last = time.monotonic()

    def say(tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            print(f"{what}: {tokens:,} tokens at every context", file=sys.stderr, flush=True)

    return say


def secure_streams() -> None:
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
    """Drop what a stream still holds, and all that is written to it from now on.

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
