"""Plain English: the phrases that docs/STYLE.md refuses are in no page, docstring or message.

`python tests/docs/test_style.py PATH ...` lists what is left in files and folders.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
STYLE = ROOT / "docs/STYLE.md"
EXPORTED = "modeling_unitsphere.py"
"""Its text is that of earlier exports, which are compared with it."""
HELD = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "benchmarks", "examples", "src"]
"""Files and folders in which the phrases are refused."""


def refused() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The refused phrases of the table, and the good English that contains some of them."""
    section = STYLE.read_text(encoding="utf-8").partition("## Refused")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    bad, good = ([p for row in rows for p in re.findall("`(.+?)`", row[n])] for n in (1, 3))
    return words(bad), words(good)


def words(phrases: list[str]) -> re.Pattern[str]:
    """Any of the phrases as whole words; `is/are no` has two forms."""
    forms = [
        r"\s+".join(f"(?:{word.replace('/', '|')})" for word in phrase.split())
        for phrase in phrases
    ]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", re.IGNORECASE)


def blank(match: re.Match[str]) -> str:
    """What is not prose, with its line breaks kept so that lines can be counted."""
    return re.sub(r"[^\n]", "¤", match[0])


def markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """A page without its code: blocks, and what stands between backticks."""
    yield 1, re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", blank, text, flags=re.M | re.S)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings, and strings of several words: help and messages."""
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("# ")
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == token.start[0]:
                comments[-1] = comments[-1][0], f"{comments[-1][1]}\n{said}"
            else:
                comments.append((token.start[0], said))
    strings = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    for line, said in comments + strings:
        yield line, re.sub(r"`[^`]*`", blank, said)


def findings(path: Path) -> list[str]:
    """The refused phrases in a file: `path:line: phrase`."""
    bad, good = refused()
    prose = python_prose if path.suffix == ".py" else markdown_prose
    return [
        f"{path.relative_to(ROOT)}:{line + said[: found.start()].count(chr(10))}: {found[0]!r}"
        for line, text in prose(path.read_text(encoding="utf-8"))
        for said in [good.sub(blank, text)]
        for found in bad.finditer(said)
    ]


def files(place: str) -> list[Path]:
    """The pages and modules at a path, without docs/STYLE.md, which names the phrases."""
    path = ROOT / place
    found = sorted([*path.rglob("*.md"), *path.rglob("*.py")]) if path.is_dir() else [path]
    return [file for file in found if file != STYLE and file.name != EXPORTED]


@pytest.mark.parametrize("place", HELD)
def test_no_refused_phrase(place):
    assert not [finding for file in files(place) for finding in findings(file)]


@pytest.mark.parametrize(
    ("said", "phrase"),
    [
        ("The run goes on.", "goes on"),
        ("It is no\nfile", "is no\nfile"[:5]),
        ("There is no file, and it is no longer there; `goes on`.", None),
        ("0.05 nats a token", "nats a token"),
        ("At 4 bits a tenth is lost.", None),
        ("Leave it alone.", None),
        ("Weights alone are rounded.", "alone"),
    ],
)
def test_what_is_refused(said, phrase):
    bad, good = refused()
    ((_, prose),) = markdown_prose(said)
    found = bad.search(good.sub(blank, prose))
    assert (found[0] if found else None) == phrase


if __name__ == "__main__":
    for place in sys.argv[1:]:
        for file in files(place):
            for finding in findings(file):
                print(finding)
