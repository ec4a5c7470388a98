"""The files below a folder and those that a glob names: none is left out in silence."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from unitsphere.errors import UserError

_HIDDEN = re.compile(r"\..*")


def matches(base: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """What a glob's parts name below the folder `base`, but for folders; some perhaps twice.

    As `glob` does it, but `**` follows no links, whose circles would have no end, and a folder
    that cannot be read is an OSError.
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
    """The files and folders below a folder of the user's, but for hidden ones.

    Links to files are files. Raises UserError for a link to a folder that is not among these: what
    is there would be missing, and following links may have no end.
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
    """The files and the folders below a folder, but for skipped names.

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
