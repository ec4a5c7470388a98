"""What verbs print: one JSON document, or a table that fits the terminal."""

import json
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction of writing."""


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    # JSON escapes control characters up to 0x1f alone; some terminals obey those from 0x7f too.
    print(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def harmless(text: str) -> str:
    """A line without control characters, in whose place stands U+FFFD.

    For names from files that somebody else may have made: a terminal obeys escape sequences, and
    shows text behind a change of direction in another order.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" or c in DIRECTIONS else c
        for c in text
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; columns after the first are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            Text(harmless(column)), justify="right" if index else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    # A file or a pipe has no width to fit.
    width = None if sys.stdout.isatty() else 200
    console = Console(highlight=False, width=width)
    # Printed by Python: rich would end the program by itself if a pipe's reader has left.
    with console.capture() as rendered:
        console.print(table)
    print(rendered.get(), end="")


def print_text(text: str) -> None:
    """Text that a model wrote, and a line's end."""
    print_piece(text + "\n")


def print_piece(text: str) -> None:
    """Text that a model wrote: on a terminal without control characters, which could garble it."""
    if sys.stdout.isatty():
        text = "".join(
            "\N{REPLACEMENT CHARACTER}"
            if unicodedata.category(c) == "Cc" and c not in "\n\t"
            else c
            for c in text
        )
    print(text, end="", flush=True)
