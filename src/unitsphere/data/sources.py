"""Where text comes from: a source's files, and their documents as a stream of short pieces.

A source is "stdlib", a file, a glob, a folder, or standard input: "-" as one text, "-.jsonl" as
JSON lines, either kept in a temporary file because a source is read more than once. A *.jsonl file
holds one document a line; every other file is one document. Empty documents are left out. Text is
UTF-8 without NUL bytes.

Whatever the input's size, only a piece is held at a time: files are read in chunks, and a document
longer than PIECE characters comes in several pieces. Each ends where a line ends and the next
begins with no blank between (failing that, before a single space; failing that, anywhere): there
the pre-tokenizers of byte-level BPE split anyway, so the tokens are those of the whole document.
A tokenizer that puts a blank before its input does so before each piece.
"""

import codecs
import glob
import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import NamedTuple

from unitsphere.data.jsonl import json_records, not_utf8, open_file, refuse_binary
from unitsphere.errors import UserError

PIECE = 1 << 16
"""Longest piece of a document, in characters."""
CHUNK = 1 << 20
"""Bytes read at a time from a text file."""

BEGIN = 1 << 16
"""Bytes of each file that are looked at before anything is done with the source."""

STANDARD_INPUT = ("-", "-.jsonl")

# In order of preference; each match ends at the last such place.
_CUTS = tuple(
    re.compile(pattern, re.DOTALL) for pattern in (r".*\S\n(?=\S)", r".*\S(?= \S)", r".*\n(?=\S)")
)
_HIDDEN = re.compile(r"\..*")
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdin" + Path(source).suffix)
        with path.open("wb") as handle:
            shutil.copyfileobj(sys.stdin.buffer, handle, CHUNK)
        yield [path]


def find_files(source: str) -> list[Path]:
    """The files of a source, sorted by name.

    Raises UserError if there are none, or one begins with what is not text.
    """
    files = _files(source)
    for file in files:
        _check_begin(file)
    return files


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
        return _walk(Path(sysconfig.get_path("stdlib")), _NOT_STDLIB, ".py")
    if path.is_dir():
        files = _walk(path, _HIDDEN)
        nothing = f"folder {source} holds no files"
    elif path.is_file():
        return [path]
    elif path.exists():
        raise UserError(f"{source} is no regular file: pipe it in, with '-' as the source")
    else:
        files = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
        is_glob = glob.has_magic(source)
        nothing = f"no file matches {source}" if is_glob else f"no such file: {source}"
    if not files:
        raise UserError(f"{nothing}; a source is 'stdlib', '-', a file, a glob or a folder")
    return sorted(files)


def _walk(root: Path, skipped: re.Pattern[str], suffix: str = "") -> list[Path]:
    """The files below a folder, sorted, but for skipped names of files and folders."""
    files: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not skipped.fullmatch(name)]
        wanted = [n for n in names if n.endswith(suffix) and not skipped.fullmatch(n)]
        files += filter(os.path.isfile, (os.path.join(folder, name) for name in wanted))
    return [Path(file) for file in sorted(files)]


def content_fingerprint(files: Sequence[Path]) -> str:
    """A sha256 over the files' contents in order, their names left out."""
    whole = hashlib.sha256()
    for path in files:
        with open_file(path) as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        whole.update(f"{'jsonl' if path.suffix == '.jsonl' else 'text'} {digest}\n".encode())
    return whole.hexdigest()


def read_documents(
    files: Iterable[Path], field: str = "text", on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[Piece]:
    """The documents of `files` in order, in pieces; `on_bytes(n)` hears of every n bytes read.

    Raises a `UserError` that names the place for anything that is not the text it should be.
    """
    document = 0
    for path in files:
        if path.suffix == ".jsonl":
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
        if path.suffix != ".jsonl":
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
