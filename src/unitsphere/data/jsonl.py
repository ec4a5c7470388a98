"""JSON lines: an object a line, read one at a time; every mistake is one line that names its place.

Text is UTF-8 without NUL bytes.
"""

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.files import open_given

LINE_LIMIT = 32 << 20
"""Longest line of a JSONL file, in bytes: a line is parsed as a whole."""


@dataclass(frozen=True)
class Record:
    """The object of a line, and where it stands."""

    values: dict[str, Any]
    where: str

    def text(self, field: str) -> str:
        """The text of a field; a `UserError` if there is none."""
        if field not in self.values:
            hint = did_you_mean(field, self.values)
            fields = "" if "known:" in hint else f"; its fields: {', '.join(self.values)}"
            raise UserError(f"{self.where} has no field '{field}'{hint}{fields}")
        text = self.values[field]
        if not isinstance(text, str):
            kind = type(text).__name__
            raise UserError(f"{self.where}: field '{field}' is not text but {kind}")
        if "\0" in text:
            raise UserError(
                f"{self.where}: field '{field}' holds a NUL character: only text is prepared"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{self.where}: field '{field}' holds half a surrogate pair") from error
        return text


def json_records(
    path: Path, on_bytes: Callable[[int], object] = lambda n: None, example: str = '{"text": "..."}'
) -> Iterator[Record]:
    """The objects of a JSONL file in order; blank lines are skipped.

    `on_bytes(n)` hears of every n bytes read. `example` shows what a line should be where one is
    no object.
    """
    offset = 0
    with open_file(path) as handle:
        lines = iter(functools.partial(handle.readline, LINE_LIMIT + 1), b"")
        for number, line in enumerate(lines, 1):
            where = f"line {number} of {path}"
            if len(line) > LINE_LIMIT:
                limit = LINE_LIMIT >> 20
                raise UserError(f"{where} is longer than {limit} MiB: split the document")
            refuse_binary(line, path, offset)
            if not line.isspace():
                # Nothing but the record is kept while it is used: lines may be long.
                yield Record(_object(_decoded(line, path, offset), where, example), where)
            offset += len(line)
            on_bytes(len(line))


def _object(line: str, where: str, example: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object such as {example}")
    return record


def _decoded(line: bytes, path: Path, offset: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, offset + error.start) from error


def open_file(path: Path) -> BufferedReader:
    """The file, open for reading bytes; a `UserError` if it cannot be."""
    return BufferedReader(open_given(path))


def refuse_binary(data: bytes, path: Path, offset: int) -> None:
    """A `UserError` if `data`, which begins at byte `offset` of a file, holds a NUL byte."""
    if (at := data.find(b"\0")) >= 0:
        raise UserError(
            f"{path} is a binary file (NUL at byte {offset + at}): only UTF-8 text can be read"
        )


def not_utf8(path: Path, offset: int) -> UserError:
    """The error of a file that is no UTF-8."""
    return UserError(f"{path} is not valid UTF-8 at byte {offset}: convert it to UTF-8 first")
