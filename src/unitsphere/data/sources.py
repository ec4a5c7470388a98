"""Where text comes from: a source's files, and their documents as a stream of short pieces.

A source is "stdlib", a file, a glob, a folder, or standard input: "-" as one text, "-.jsonl" as
JSON lines, either kept in a temporary file because a source is read more than once. A *.jsonl or
*.ndjson file holds one document a line; every other file is one document, but for tables and JSON
(`NOT_TEXT`), which are refused. Empty documents are left out. Text is UTF-8 without NUL bytes.

Nothing in a folder is left out in silence but hidden names: what cannot be read is an error.

Whatever the input's size, only a piece is held at a time: files are read in chunks, and a document
longer than PIECE characters comes in several pieces. Each ends where a line ends and the next
begins with no blank between (failing that, before a single space; failing that, anywhere): there
the pre-tokenizers of byte-level BPE split anyway, so the tokens are those of the whole document.
A tokenizer that puts a blank before its input does so before each piece.
"""

import codecs
import glob
import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import NamedTuple

from unitsphere.data.jsonl import json_records, not_utf8, open_file, refuse_binary
from unitsphere.data.stdin import keep_standard_input, temporary_folder
from unitsphere.data.walk import below, matches, walk
from unitsphere.errors import UserError
from unitsphere.files import reason

PIECE = 1 << 16
"""Longest piece of a document, in characters."""
CHUNK = 1 << 20
"""Bytes read at a time from a text file."""

BEGIN = 1 << 16
"""Bytes of each file that are looked at before anything is done with the source."""

STANDARD_INPUT = ("-", "-.jsonl")
JSON_LINES = (".jsonl", ".ndjson")
"""Endings, in lower case, of files with a JSON object a line."""
NOT_TEXT = {".json": "JSON", ".csv": "a table", ".tsv": "a table", ".parquet": "a table"}
"""Endings, in lower case, of files whose commas, quotes and numbers would be learned as text."""

# In order of preference; each match ends at the last such place.
_CUTS = tuple(
    re.compile(pattern, re.DOTALL) for pattern in (r".*\S\n(?=\S)", r".*\S(?= \S)", r".*\n(?=\S)")
)
# Parts of the standard library that are tests or differ between installations of one Python.
_NOT_STDLIB = re.compile(
    r"test|tests|idle_test|site-packages|dist-packages|__pycache__|config-.*"
    r"|_sysconfigdata.*|(site|user)customize\.py"
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


@contextmanager
def source_files(source: str) -> Iterator[list[Path]]:
    """The files of a source, standard input included, as long as the context lasts."""
    if source not in STANDARD_INPUT:
        yield find_files(source)
        return
    with temporary_folder() as folder:
        path = Path(folder, "stdin" + Path(source).suffix)
        keep_standard_input(path)
        yield [path]


def find_files(source: str) -> list[Path]:
    """The files of a source, sorted by name.

    Raises UserError if there are none, one begins with what is not text or is a table, or a file
    or folder cannot be read.
    """
    try:
        files = _files(source)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        name = getattr(error, "filename", None) or source
        raise UserError(f"cannot read {name}: {reason(error)}") from error
    for file in files:
        _check_ending(file, source)
        _check_begin(file)
    return files


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that each of its lines is a JSON object."""
    return path.suffix.lower() in JSON_LINES


def _check_ending(path: Path, source: str) -> None:
    """Raise UserError for a table, and for JSON that is not one object a line."""
    kind = NOT_TEXT.get(path.suffix.lower())
    if kind is None:
        return
    todo = "write its texts to a .jsonl file, a JSON object a line"
    if path.suffix.lower() != ".parquet":
        todo += "; to learn it as it stands, rename it to end in .txt"
    if str(path) != source:
        todo += "; to leave it out, name the others by a glob, such as '*.txt'"
    raise UserError(f"{path} is {kind}, not text: {todo}")


def _check_begin(path: Path) -> None:
    """Raise UserError for a file that is binary or not UTF-8 before the others are read."""
    with open_file(path) as handle:
        data = handle.read(BEGIN)
    refuse_binary(data, path, 0)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError as error:
        raise not_utf8(path, error.start) from error


def _files(source: str) -> list[Path]:
    path = Path(expanduser(source))
    if source == "stdlib":
        files, _ = walk(Path(sysconfig.get_path("stdlib")), _NOT_STDLIB)
        return sorted((file for file in files if file.suffix == ".py"), key=str)
    if path.is_dir():
        files, _ = below(path)
        nothing = f"folder {source} holds no files"
    elif path.is_file():
        return [path]
    elif path.exists():
        raise UserError(f"{source} is no regular file: pipe it in, with '-' as the source")
    else:
        parts = path.parts[1:] if path.anchor else path.parts
        files = list(set(matches(Path(path.anchor), parts)))
        is_glob = glob.has_magic(source)
        nothing = f"no file matches {source}" if is_glob else f"no such file: {source}"
    if not files:
        raise UserError(f"{nothing}; a source is 'stdlib', '-', a file, a glob or a folder")
    return sorted(files)


def content_fingerprint(files: Sequence[Path]) -> str:
    """A sha256 over the files' contents in order, their names left out."""
    whole = hashlib.sha256()
    for path in files:
        with open_file(path) as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        whole.update(f"{'jsonl' if is_json_lines(path) else 'text'} {digest}\n".encode())
    return whole.hexdigest()


def read_documents(
    files: Iterable[Path], field: str = "text", on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[Piece]:
    """The documents of `files` in order, in pieces; `on_bytes(n)` hears of every n bytes read.

    Raises a `UserError` that names the place for anything that is not the text it should be.
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

    Raises a `UserError` that names the line for a pair of which a side is missing, no text, or
    blank: none is left out in silence.
    """
    example = f'{{"{fields.source}": "...", "{fields.target}": "..."}}'
    for path in files:
        if not is_json_lines(path):
            raise UserError(f"{path} is no .jsonl file: pairs come as lines such as {example}")
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
    offset = 0
    with open_file(path) as handle:
        while True:
            data = handle.read(CHUNK)
            refuse_binary(data, path, offset)
            begun = offset - len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise not_utf8(path, begun + error.start) from error
            yield text
            if not data:
                return
            offset += len(data)
            on_bytes(len(data))


def _json_lines(path: Path, field: str, on_bytes: Callable[[int], object]) -> Iterator[tuple[str]]:
    for record in json_records(path, on_bytes, f'{{"{field}": "..."}}'):
        yield (record.text(field),)
