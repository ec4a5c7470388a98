"""A page as Markdown: a study's results.md."""

from collections.abc import Mapping, Sequence
from typing import Any

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


def markdown(page: Page) -> str:
    """The answer, what limits it, the results, and how they were measured.

    Of the figures only those that are written into the study's folder (`Figures.files`).
    """
    parts = [f"# {page.title}\n", f"{page.answer}\n"]
    parts += [f"{page.unfinished}\n"] if page.unfinished else []
    parts += [listed(page.caveats)] if page.caveats else []
    shown = [section for section in page.sections if not section.detail]
    for section in shown:
        parts += section_parts(section, headed=len(shown) > 1)
    facts = [page.kind, *(f"{name}: {value}" for name, value in page.facts)]
    parts.append("; ".join(facts) + ".\n")
    if page.provenance:
        parts.append(origin(page.provenance))
    return "\n".join(parts)


def section_parts(section: Section, headed: bool) -> list[str]:
    """A section's blocks, under its heading if the page has several."""
    parts = [f"## {section.title}\n"] if headed else []
    parts += [f"{section.intro}\n"] if section.intro else []
    for block in section.blocks:
        parts += block_parts(block)
    return parts


def block_parts(block: Block) -> list[str]:
    """A block as paragraphs, lists, tables and pictures."""
    match block:
        case Table():
            notes = [f"{note}\n" for note in block.notes]
            return [f"### {block.title}\n", markdown_table(block.columns, block.rows), *notes]
        case Text():
            return [listed(block.lines)] if block.listed else [f"{line}\n" for line in block.lines]
        case Figures():
            title = block.title or ", ".join(figure.title for figure in block.figures)
            return [f"![{title}]({block.files[0]})\n"] if block.files else []
        case Commands():
            return [listed([f"{what}: `{line}`" for what, line in block.commands if line])]
        case Samples():
            return [f"{each.title}:\n\n```text\n{each.text}\n```\n" for each in block.samples]
        case Folded():
            return [part for inner in block.blocks for part in block_parts(inner)]
        case Playground():
            return []


def listed(lines: Sequence[str]) -> str:
    """Lines as a list."""
    return "".join(f"- {line}\n" for line in lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns after the first are aligned to the right."""
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    cells = [[cell.replace("|", "&#124;") for cell in row] for row in (columns, *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (cells[0], rule, *cells[1:]))


def origin(source: Mapping[str, Any]) -> str:
    """Where a study's figures come from: the command, the commit of the runs, the machine."""
    return (
        f"Command: `{source['command']}`  \n"
        f"Commit: {source.get('runs_commit') or source['commit']}  \n"
        f"Machine: {source['machine']}, torch {source['torch']}\n"
    )
