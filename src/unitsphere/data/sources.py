"""The files of a source: "stdlib", a file, a glob, a folder, or standard input.

Standard input is "-" as one text, "-.jsonl" as JSON lines; either is kept in a temporary file,
because a source is read more than once. Tables and JSON (`NOT_TEXT`) are refused. No file of a
folder is left out silently, except hidden names: what cannot be read is an error.
"""

import codecs
import glob
import hashlib
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path

from unitsphere.data.documents import is_json_lines, not_utf8, open_file, refuse_binary
from unitsphere.errors import UserError
from unitsphere.files import reason

BEGIN = 1 << 16
"""Bytes of each file that are looked at before anything is done with the source."""
STANDARD_INPUT = ("-", "-.jsonl")
NOT_TEXT = {".json": "JSON", ".csv": "a table", ".tsv": "a table", ".parquet": "a table"}
"""Endings, in lower case, of files whose commas, quotes and numbers would be learned as text."""
_NOT_STDLIB = re.compile(
    r"test|tests|idle_test|site-packages|dist-packages|__pycache__|config-.*"
    r"|_sysconfigdata.*|(site|user)customize\.py"
)
"""Parts of the standard library that are tests or differ between installations of one Python."""
_HIDDEN = re.compile(r"\..*")
STDIN_CHUNK = 1 << 20
"""Bytes of standard input that are read at a time."""


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


@contextmanager
def scored_files(source: str, missing: str = "there is no text") -> Iterator[list[Path]]:
    """`source_files` of a text to be scored; UserError if it is empty."""
    with source_files(source) as files:
        if not any(path.stat().st_size for path in files):
            raise UserError(f"{source} is empty: {missing} to evaluate")
        yield files


def find_files(source: str) -> list[Path]:
    """The files of a source, sorted by name.

    Raises UserError if there are none, one begins with what is not text or is a table, or a file
    or folder cannot be read.
    """
    if not source:  # as a path it would be the working directory
        raise UserError("the name of the text is empty: give a file, a glob or a folder")
    try:
        files = _files(source)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        name = getattr(error, "filename", None) or source
        raise UserError(f"cannot read {name}: {reason(error)}") from error
    for file in files:
        _check_ending(file, source)
        _check_begin(file)
    return files


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
    """Raise UserError for a binary or non-UTF-8 file, before the others are read."""
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
        raise UserError(f"{source} is not a regular file: pipe it in, with '-' as the source")
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


def matches(base: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """The files that a glob's parts name below the folder `base`; some perhaps twice.

    Like `glob`, except that `**` follows no links, which may form endless circles, and that a
    folder that cannot be read is an OSError.
    """
    at = parts.index("**") if "**" in parts else len(parts)
    start = glob.escape(str(base))
    for n, name in enumerate(parts[:at]):
        for folder in filter(os.path.isdir, glob.iglob(os.path.join(start, *parts[:n]))):
            os.stat(os.path.join(folder, "."))
            if glob.has_magic(name):
                os.scandir(folder).close()
    found = glob.iglob(os.path.join(start, *parts[:at]))
    if at == len(parts):
        yield from (Path(path) for path in found if not os.path.isdir(path))
        return
    for root in filter(os.path.isdir, found):
        for folder in (Path(root), *below(Path(root))[1]):
            yield from matches(folder, parts[at + 1 :] or ("*",))


def below(root: Path) -> tuple[list[Path], list[Path]]:
    """The files and folders below a folder of the user's, except hidden ones.

    Links to files are files. Raises UserError for a link to a folder that is not among these: its
    files would be missing, and following links may never end.
    """
    files, folders = walk(root, _HIDDEN)
    real = [folder for folder in folders if not folder.is_symlink()]
    inside = {folder.resolve() for folder in (root, *real)}
    for link in folders:
        if link.is_symlink() and link.resolve() not in inside:
            raise UserError(
                f"{link} is a link to another folder, which is not followed: remove it, or name "
                f"the files by a glob without **, such as '{root}/*/*.txt'"
            )
    return files, real


def walk(root: Path, skipped: re.Pattern[str]) -> tuple[list[Path], list[Path]]:
    """The files and the folders below a folder, except skipped names.

    A link to a folder is among the folders, and what is in it is not followed. Raises OSError for
    a folder that cannot be read.
    """
    files, folders = [], []
    for place, inside, names in os.walk(root, onerror=_raise):
        inside[:] = [name for name in inside if not skipped.fullmatch(name)]
        folders += [Path(place, name) for name in inside]
        files += [Path(place, name) for name in names if not skipped.fullmatch(name)]
    return files, folders


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder that lasts as long as the context; a `UserError` if there is no room for one."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise _no_room(error) from error
    with folder as path:
        yield path


def keep_standard_input(path: Path) -> None:
    """Copy standard input to a new file, in chunks."""
    if sys.stdin is None:
        raise UserError("standard input is closed: pipe the text in")
    try:
        with path.open("xb") as handle:
            while chunk := _read_standard_input():
                handle.write(chunk)
    except OSError as error:
        raise _no_room(error) from error


def _read_standard_input() -> bytes:
    try:
        return sys.stdin.buffer.read(STDIN_CHUNK)
    except OSError as error:
        raise UserError(f"cannot read standard input: {reason(error)}") from error


def _no_room(error: OSError) -> UserError:
    """The error of a full folder for temporary files: the output is not to blame."""
    return UserError(
        f"cannot keep standard input in {tempfile.tempdir or 'a temporary folder'}: "
        f"{reason(error)}; set TMPDIR to a folder with room, or write the text to a file"
    )
