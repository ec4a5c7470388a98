"""A page as text: Markdown, as a study's results.md is, or for a terminal."""

import re
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitsphere.report.document import (
    Block,
    Commands,
    Figures,
    Folded,
    Page,
    Playground,
    Samples,
    Section,
    Table,
    Text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable


def markdown(page: Page) -> str:
    """The answer, what limits it, the results, and how they were measured.

    Of the figures only those that are written into the study's folder (`Figures.files`).
    """
    parts = [f"# {plain(page.title)}\n", f"{plain(page.answer)}\n"]
    parts += [f"{plain(page.unfinished)}\n"] if page.unfinished else []
    parts += [listed(page.caveats)] if page.caveats else []
    shown = [section for section in page.sections if not section.detail]
    for section in shown:
        parts += section_parts(section, headed=len(shown) > 1)
    facts = [page.kind, *(f"{name}: {value}" for name, value in page.facts)]
    parts.append(plain("; ".join(facts)) + ".\n")
    if page.provenance:
        parts.append(origin(page.provenance))
    return "\n".join(parts)


def section_parts(section: Section, headed: bool) -> list[str]:
    """A section's blocks, under its heading if the page has several."""
    parts = [f"## {plain(section.title)}\n"] if headed else []
    parts += [f"{plain(section.intro)}\n"] if section.intro else []
    for block in section.blocks:
        parts += block_parts(block)
    return parts


def block_parts(block: Block) -> list[str]:
    """A block as paragraphs, lists, tables and pictures."""
    match block:
        case Table():
            columns, *rows = ([plain(cell) for cell in row] for row in (block.columns, *block.rows))
            notes = [f"{plain(note)}\n" for note in block.notes]
            return [f"### {plain(block.title)}\n", markdown_table(columns, rows), *notes]
        case Text():
            lines = [f"{plain(line)}\n" for line in block.lines]
            return [listed(block.lines)] if block.listed else lines
        case Figures():
            title = block.title or ", ".join(figure.title for figure in block.figures)
            return [f"![{plain(title)}]({block.files[0]})\n"] if block.files else []
        case Commands():
            shown = [f"- {plain(what)}: {code(line)}\n" for what, line in block.commands if line]
            return ["".join(shown)]
        case Samples():
            return [f"{plain(each.title)}:\n\n{fenced(each.text)}" for each in block.samples]
        case Folded():
            return [part for inner in block.blocks for part in block_parts(inner)]
        case Playground():
            return []


MARKUP = re.compile(
    r"[\\`*]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-z/!?])|&(?=#?\w+;)|\](?=[(\[])", re.IGNORECASE
)
"""What Markdown takes for more than text; "_" within a word it does not."""


def plain(text: str) -> str:
    """Text that Markdown shows as it is: names come from users, and from files of others."""
    return MARKUP.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """Text between more backticks than it has in a row."""
    ticks = "`" * (longest_ticks(text) + 1)
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def fenced(text: str) -> str:
    """A block of text, between more backticks than it has in a row."""
    fence = "`" * max(longest_ticks(text) + 1, 3)
    return f"{fence}text\n{text}\n{fence}\n"


def longest_ticks(text: str) -> int:
    """The most backticks in a row."""
    return max(map(len, re.findall("`+", text)), default=0)


def listed(lines: Sequence[str]) -> str:
    """Lines of text as a list."""
    return "".join(f"- {plain(line)}\n" for line in lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns after the first are aligned to the right."""
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    cells = [[cell.replace("|", "&#124;") for cell in row] for row in (columns, *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (cells[0], rule, *cells[1:]))


def origin(source: Mapping[str, Any]) -> str:
    """Where a study's figures come from: the command, the commit of the runs, the machine."""
    return (
        f"Command: {code(source['command'])}  \n"
        f"Commit: {source.get('runs_commit') or source['commit'] or 'not known'}  \n"
        f"Machine: {plain(source['machine'])}, torch {source['torch']}\n"
    )


DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the direction of writing."""


def print_page(page: Page) -> None:
    """Print a page on stdout, as wide as the terminal; a file or a pipe has no width to fit."""
    print(terminal(page, None if sys.stdout.isatty() else 200))


def terminal(page: Page, width: int | None = None) -> str:
    """A page as text; figures, and what a reader opens on the HTML page, are left out."""
    from rich.console import Console

    console = Console(highlight=False, width=width)
    # Captured and printed by Python: rich would end the program if a pipe's reader has left.
    with console.capture() as shown:
        told = [page.answer, page.unfinished, *page.caveats]
        console.print("\n".join(harmless(line) for line in told if line), markup=False)
        for section in page.sections:
            if not section.detail:
                for block in section.blocks:
                    print_block(console, block)
    return shown.get().rstrip("\n")


def print_block(console: "Console", block: Block) -> None:
    """Print a table or text on a rich console."""
    if isinstance(block, Table):
        cut = 0 < block.most < len(block.rows)
        more = f" (the first {block.most} of {len(block.rows)})" if cut else ""
        console.print()
        console.print(harmless(block.title) + more, markup=False)
        places = block.brief or range(len(block.columns))
        rows = block.rows[: block.most] if cut else block.rows
        kept = [[row[place] for place in places] for row in rows]
        columns = [block.columns[place] for place in places]
        table = rich_table(columns, kept)
        unbounded = console.options.update(max_width=10_000)
        if console.measure(table, options=unbounded).maximum > console.width:
            table = rich_table(narrow(columns, kept), kept)
        console.print(table)
    if isinstance(block, Text):
        console.print()
        console.print("\n".join(map(harmless, block.lines)), markup=False)


def narrow(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Headings broken between words, so that none makes its column wider than its cells do."""
    found = []
    for index, column in enumerate(columns):
        lengths = [len(row[index]) for row in rows] + [len(word) for word in column.split()]
        found.append(textwrap.fill(column, max(lengths, default=1)))
    return found


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> "RichTable":
    """A table for a rich console; columns after the first `left` are aligned to the right."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text as Plain

    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        justify = "left" if index < left else "right"
        heading = "\n".join(map(harmless, column.split("\n")))
        table.add_column(Plain(heading), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Plain(harmless(cell)) for cell in row))
    return table


def harmless(text: str) -> str:
    """A line in which U+FFFD replaces every control character.

    For names from files that somebody else may have made: a terminal obeys escape sequences, and
    shows text after a change of direction in another order.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" or c in DIRECTIONS else c
        for c in text
    )
