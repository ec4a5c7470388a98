"""What verbs print: one JSON document, or a table that fits the terminal."""

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; columns after the first are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
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
