"""Documents and pairs as text, read from files as a stream of short pieces.

A *.jsonl or *.ndjson file holds one document (or pair) a line; every other file is one document.
Empty documents are left out. Text is UTF-8 without NUL bytes; every mistake is one line that names
its place.

Whatever the input's size, only a piece is held at a time: files are read in chunks, and a document
longer than PIECE characters comes in several pieces. Each ends where a line ends and the next
begins with no blank between (failing that, before a single space; failing that, anywhere): there
the pre-tokenizers of byte-level BPE split anyway, so the tokens are those of the whole document.
A tokenizer that puts a blank before its input does so before each piece.
"""

import codecs
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.files import open_given

PIECE = 1 << 16
"""Longest piece of a document, in characters."""
CHUNK = 1 << 20
"""Bytes read at a time from a text file."""
JSON_LINES = (".jsonl", ".ndjson")
"""Endings, in lower case, of files with a JSON object a line."""
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"PK\x03\x04")
"""How files of gzip, zstd, xz and zip begin."""
LINE_LIMIT = 32 << 20
"""Longest line of a JSONL file, in bytes: a line is parsed as a whole."""


# In order of preference; each match ends at the last such place.
_CUTS = tuple(
    re.compile(pattern, re.DOTALL) for pattern in (r".*\S\n(?=\S)", r".*\S(?= \S)", r".*\n(?=\S)")
)


class Piece(NamedTuple):
    """A stretch of one document's text; `document` counts from 0."""

    document: int
    text: str


class PairFields(NamedTuple):
    """The fields of a JSONL line that hold the two sides of a pair."""

    source: str
    target: str


class TextPair(NamedTuple):
    """A source and its target."""

    source: str
    target: str


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that each of its lines is a JSON object."""
    return path.suffix.lower() in JSON_LINES


def read_documents(
    files: Iterable[Path], field: str = "text", on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[Piece]:
    """The documents of `files` in order, in pieces; `on_bytes(n)` is called for every n bytes read.

    Raises a `UserError` that names the place of anything that is not text.
    """
    document = 0
    for path in files:
        if is_json_lines(path):
            documents = _json_lines(path, field, on_bytes)
        else:
            documents = iter([_text_file(path, on_bytes)])
        for chunks in documents:
            found = False
            for text in _pieces(chunks):
                found = True
                yield Piece(document, text)
            document += found


def read_text_pairs(
    files: Iterable[Path], fields: PairFields, on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[TextPair]:
    """The pairs of parallel JSONL files in order; blank lines are skipped.

    Raises a `UserError` that names the line if a side of a pair is missing, blank, or not text: no
    pair is left out silently.
    """
    example = f'{{"{fields.source}": "...", "{fields.target}": "..."}}'
    for path in files:
        if not is_json_lines(path):
            raise UserError(f"{path} is not a .jsonl file: pairs come as lines such as {example}")
        for record in json_records(path, on_bytes, example):
            pair = TextPair(record.text(fields.source), record.text(fields.target))
            for field, text in zip(fields, pair, strict=True):
                if not text.strip():
                    raise UserError(f"{record.where}: field '{field}' is blank: leave the pair out")
            yield pair


def read_pairs(
    files: Iterable[Path], fields: PairFields, on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[Piece]:
    """`read_text_pairs` as documents: 2i is the source of pair i, 2i + 1 the target."""
    texts = (text for pair in read_text_pairs(files, fields, on_bytes) for text in pair)
    for document, text in enumerate(texts):
        for piece in _pieces([text]):
            yield Piece(document, piece)


def _pieces(chunks: Iterable[str]) -> Iterator[str]:
    held = ""
    for chunk in chunks:
        held, start = held + chunk, 0
        while len(held) - start > PIECE:
            end = _cut(held, start)
            yield held[start:end]
            start = end
        held = held[start:]
    if held:
        yield held


def _cut(text: str, start: int) -> int:
    for pattern in _CUTS:
        # One character more than a piece, for what follows the cut.
        if found := pattern.match(text, start, start + PIECE + 1):
            return found.end()
    return start + PIECE


def _text_file(path: Path, on_bytes: Callable[[int], object]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_file(path) as handle:
        offset = handle.tell()
        while True:
            data = handle.read(CHUNK)
            refuse_binary(data, path, offset)
            start = offset - len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise not_utf8(path, start + error.start) from error
            yield text
            if not data:
                return
            offset += len(data)
            on_bytes(len(data))


def _json_lines(path: Path, field: str, on_bytes: Callable[[int], object]) -> Iterator[tuple[str]]:
    for record in json_records(path, on_bytes, f'{{"{field}": "..."}}'):
        yield (record.text(field),)


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
        return checked_text(self.values[field], field, self.where)


JSON_KINDS = {
    type(None): "null", bool: "true or false", int: "a number", float: "a number",
    list: "a list", dict: "an object",
}  # fmt: skip
"""What JSON calls the types that are not text."""


def checked_text(value: Any, field: str, where: str) -> str:
    """A field's value, which must be text that a tokenizer can take; a `UserError` if it is not."""
    if not isinstance(value, str):
        kind = JSON_KINDS[type(value)]
        raise UserError(f"{where}: field '{field}' is not text but {kind}: leave the line out")
    if "\0" in value:
        raise UserError(f"{where}: field '{field}' holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: field '{field}' holds half a surrogate pair") from error
    return value


def check_texts(value: Any, where: str, field: str = "") -> None:
    """Raise UserError for text that no tokenizer can take, in lists and tables too."""
    if isinstance(value, str):
        checked_text(value, field, where)
    elif isinstance(value, list | dict):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            check_texts(one, where, f"{field}.{key}" if field else str(key))


def json_records(
    path: Path, on_bytes: Callable[[int], object] = lambda n: None, example: str = '{"text": "..."}'
) -> Iterator[Record]:
    """The objects of a JSONL file in order; blank lines are skipped.

    `on_bytes(n)` is called for every n bytes read. `example` is shown in the error about a line
    that is not an object.
    """
    with open_file(path) as handle:
        offset = handle.tell()
        lines = iter(functools.partial(handle.readline, LINE_LIMIT + 1), b"")
        for number, line in enumerate(lines, 1):
            where = f"line {number} of {path}"
            if len(line) > LINE_LIMIT:
                limit = LINE_LIMIT >> 20
                raise UserError(f"{where} is longer than {limit} MiB: split the document")
            refuse_binary(line, path, offset)
            if not line.isspace():
                # Nothing but the record is kept while it is used: lines may be long.
                yield Record(json_object(_decoded(line, path, offset), where, example), where)
            offset += len(line)
            on_bytes(len(line))


def json_object(line: str, where: str, example: str) -> dict[str, Any]:
    """The object in a line of JSON; a `UserError` that shows an `example` if there is none."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")  # one message ends so, before its place
        raise UserError(f"{where} is not valid JSON: {said} (column {error.colno})") from error
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
    """The file, open for reading bytes after a byte-order mark; a `UserError` if it cannot be."""
    handle: BufferedReader = BufferedReader(open_given(path))
    if handle.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        handle.read(len(codecs.BOM_UTF8))
    return handle


def refuse_binary(data: bytes, path: Path, offset: int) -> None:
    """A `UserError` if `data`, which begins at byte `offset` of a file, holds a NUL byte.

    A compressed file, which may hold none, is refused too.
    """
    if offset == 0 and data.startswith(COMPRESSED):
        raise UserError(f"{path} is compressed: unpack it first")
    if (at := data.find(b"\0")) >= 0:
        if offset == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(f"{path} is UTF-16: convert it to UTF-8 first")
        raise UserError(
            f"{path} is a binary file (NUL at byte {offset + at}): only UTF-8 text can be read"
        )


def not_utf8(path: Path, offset: int) -> UserError:
    """The error of a file that is not UTF-8."""
    return UserError(f"{path} is not valid UTF-8 at byte {offset}: convert it to UTF-8 first")
