"""A model's folder as one file, .tar.gz, .tgz or .zip: written the same each time, unpacked safely.

An archive may come from anybody. Only JSON, safetensors and a checkpoint's marker are unpacked,
into a new temporary folder; what else it holds, such as a README, is left out. A path that leads
out of the folder, a link or a device is refused, and so is an archive that unpacks to more than
`RATIO` times its size.
"""

import gzip
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from unitsphere.errors import UserError
from unitsphere.files import JSON_LIMIT, aside, check_given, reason
from unitsphere.training.checkpoint.store import MARKER
from unitsphere.training.folder import CONFIG

SUFFIXES = (".tar.gz", ".tgz", ".zip")
RATIO = 100
"""Weights hardly shrink, and JSON to a tenth: more is made to fill the disk."""
MOST_MEMBERS = 10_000
CHUNK = 1 << 20
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, OverflowError),
    ValueError,  # a name that is not UTF-8, or a header without its number
    NotImplementedError,  # a method that zipfile does not know
)
"""What the standard library raises for an archive that it cannot read."""


class Member(NamedTuple):
    """A file of an archive, open for reading."""

    name: str
    regular: bool
    content: IO[bytes] | None


def is_archive(path: Path) -> bool:
    """Whether a path is a file with the name of an archive."""
    return path.name.endswith(SUFFIXES) and path.is_file()


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The model's folder that an archive holds, unpacked for as long as it is used.

    Raises UserError for an archive that is damaged, that is made to do harm, or without a model.
    """
    check_given(path)
    with tempfile.TemporaryDirectory(prefix="unitsphere-") as name:
        folder = Path(name)
        try:
            unpack(path, folder)
        except DAMAGED as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise UserError(f"cannot unpack {path}: {why}") from error
        configs = sorted(folder.glob(CONFIG)) or sorted(folder.glob(f"*/{CONFIG}"))
        if len(configs) != 1:
            raise UserError(f"{path} holds {len(configs)} models: it needs one folder with a model")
        yield configs[0].parent


def unpack(path: Path, folder: Path) -> None:
    """Write the files of an archive that a model consists of into an empty folder."""
    left = RATIO * path.stat().st_size + CHUNK
    for number, member in enumerate(members(path)):
        if number >= MOST_MEMBERS:
            raise UserError(f"cannot unpack {path}: it has more than {MOST_MEMBERS:,} files")
        place = safe_place(path, member)
        of_model = place.suffix in (".json", ".safetensors") or place.name == MARKER
        if member.content is None or not of_model:
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        most = min(left, JSON_LIMIT) if place.suffix == ".json" else left
        with (folder / place).open("xb") as file:
            while chunk := member.content.read(CHUNK):
                most, left = most - len(chunk), left - len(chunk)
                if most < 0:
                    raise UserError(
                        f"cannot unpack {path}: {member.name} unpacks to far more than a model's"
                    )
                file.write(chunk)


def safe_place(path: Path, member: Member) -> PurePosixPath:
    """Where a member belongs in the folder; a `UserError` if it is not a file inside it."""
    place = PurePosixPath(member.name)
    outside = place.is_absolute() or ".." in place.parts or "\\" in member.name
    if outside or "\0" in member.name or ":" in member.name:
        raise UserError(
            f"{path} has a member outside of its folder ({member.name!r}): not unpacked"
        )
    if not member.regular:
        raise UserError(f"{path} has a link or device ({member.name!r}): it is not unpacked")
    return place


def members(path: Path) -> Iterator[Member]:
    """The members of an archive in its order; folders are only names."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as file:
            for info in file.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                regular = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not info.flag_bits & 1
                if info.is_dir() or not regular:
                    yield Member(info.filename, regular, None)
                else:
                    with file.open(info) as content:
                        yield Member(info.filename, True, content)
        return
    with tarfile.open(path, "r:gz") as file:
        for info in file:
            content = file.extractfile(info) if info.isreg() else None
            yield Member(info.name, info.isreg() or info.isdir(), content)


def pack(folder: Path, out: Path) -> None:
    """Write the files of a folder as NAME.tar.gz under the folder's name.

    Equal files give equal bytes: in order of their names, without owners and times.
    """
    with (
        aside(out) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(f"{folder.name}/{file.relative_to(folder).as_posix()}")
            info.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(info, content)
