"""The cache of torch.compile, so that a resumed run need not compile again.

It holds pickles and machine code, and what is in it is run. So it is never part of a run folder,
which may come from somebody else, but of the user's own cache folder.
"""

import atexit
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.files import reason, refuse_link, write_text

CACHE = "TORCHINDUCTOR_CACHE_DIR"
SEAL = "sealed.json"


@contextmanager
def kept_cache(run: Path, first: bool) -> Iterator[None]:
    """Within: what is compiled is kept in the user's cache, so that a resumed run need not wait.

    first: whether this is the first process of the machine, which checks the cache first and
    notes at the end what is in it. A cache folder that the environment names is not touched. Raises
    UserError for one that belongs to somebody else.
    """
    if CACHE in os.environ:
        yield
        return
    folder = private_cache(run)
    if first:
        drop_damaged(folder)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(CACHE, None)
        if first:
            seal(folder)


def private_cache(run: Path) -> Path:
    """The folder of what is compiled for `run`, which only this user can read or write.

    Where the user's cache folder cannot be written: one that lasts until this process ends.
    """
    owner = os.getuid()
    key = hashlib.sha256(f"{owner}:{run.resolve()}".encode()).hexdigest()[:32]
    try:
        folder = user_cache() / "compiled" / key
        for path in (folder.parent.parent, folder.parent, folder):
            refuse_link(path)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(path, owner)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        why = reason(error) if isinstance(error, OSError) else str(error)
        print(f"compiled code is not cached: no cache folder ({why})", file=sys.stderr)
        folder = Path(tempfile.mkdtemp(prefix="unitsphere-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def user_cache() -> Path:
    """`unitsphere` in the user's cache folder; RuntimeError if the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The standard of XDG_CACHE_HOME ignores a relative path.
    home = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return home / "unitsphere"


def check_private(folder: Path, owner: int) -> None:
    """Raise UserError unless `folder` is the owner's; close it to everybody else."""
    if folder.stat().st_uid != owner:
        raise UserError(
            f"{folder} belongs to another user, and its code would be run: set "
            "XDG_CACHE_HOME to a folder of your own, or --train.compile False"
        )
    folder.chmod(0o700)


def drop_damaged(folder: Path) -> None:
    """Empty a cache unless it is as it was sealed: torch trips over half a library.

    So what a process that was killed had compiled is compiled again.
    """
    note = folder / SEAL
    try:
        sealed = read_json(note) if note.exists() else {}
        intact = sealed == contents(folder)
    except (OSError, UserError):  # such a file cannot be read: it is damaged
        intact = False
    if not intact:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def seal(folder: Path) -> None:
    """Note what is in a cache now."""
    try:
        write_text(folder / SEAL, json.dumps(contents(folder)))
    except OSError as error:  # the run itself is saved: a run does not fail because of a cache
        print(f"compiled code is not cached in {folder}: {reason(error)}", file=sys.stderr)


def contents(folder: Path) -> dict[str, str]:
    """File -> sha256 of all that the compiler keeps in a cache; its locks hold nothing."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != SEAL
    }
