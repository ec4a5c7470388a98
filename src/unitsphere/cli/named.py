"""Runs as arms on the command line: `RUN`, or `NAME=RUN`, a name given twice for several seeds."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.errors import UserError


def named_runs(words: Sequence[str]) -> dict[str, list[Path]]:
    """Arm -> run folders. A run without a name is an arm by its folder's name.

    Raises UserError for a folder that is given twice, or two folders of one name without another.
    """
    arms: dict[str, list[Path]] = {}
    by_folder: set[str] = set()
    seen: set[Path] = set()
    for word in words:
        name, equals, path = word.partition("=")
        unnamed = not equals or Path(word).exists()
        if unnamed:
            path, name = word, Path(word).name or word
        if not name or not path:
            raise UserError(f"{word!r} is no NAME=RUN, such as ngpt=runs/ngpt-1")
        if Path(path).resolve() in seen:
            raise UserError(f"{path} is given twice: each run counts once")
        if name in by_folder or (unnamed and name in arms):
            raise UserError(
                f"two runs are called {name}: write NAME=RUN, one NAME for the seeds of one arm"
            )
        by_folder |= {name} if unnamed else set()
        seen.add(Path(path).resolve())
        arms.setdefault(name, []).append(Path(path))
    return arms
