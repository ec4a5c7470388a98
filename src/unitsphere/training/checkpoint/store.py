"""Checkpoints that are complete or absent: `checkpoints/step-NNNNNNNN/`.

    *.safetensors   tensors, written by torch.distributed.checkpoint (tensors.py)
    state.json      everything else (`State`)
    COMPLETE        size and sha256 of every other file, written last

A checkpoint is written into a hidden folder next to its place, synced to the disk, and renamed
(saver.py). Here they are found, checked against their markers, listed and deleted. One whose files
do not match its marker is skipped; hidden files (.DS_Store, .nfs…) are not part of it. A link is
neither followed nor deleted. All tensors are safetensors and all else is JSON: reading a checkpoint
that someone else wrote runs no code.
"""

import errno
import hashlib
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from unitsphere.config import from_dict, read_json
from unitsphere.errors import UserError
from unitsphere.files import open_given, reason, refuse_link
from unitsphere.training.guard import Watch

MARKER = "COMPLETE"
STATE = "state.json"


@dataclass(frozen=True)
class State:
    """What a checkpoint holds besides tensors. The data's position follows from `step`."""

    step: int
    tokens: int
    seconds: float
    samples: int
    data: str
    torch_version: str
    rng: str = ""
    rng_device: str | None = None
    unfinished: dict[str, float] = field(default_factory=dict)
    """figures of a step whose record a stop left unwritten, in the middle of its validation"""
    losses: list[float] = field(default_factory=list)
    losses_seen: int = 0
    """the recent losses that a spike is measured against (guard.py)"""
    spikes: list[int] = field(default_factory=list)
    """recent steps that were spikes"""
    watch: Watch = field(default_factory=Watch)
    """what is known of the loss to judge divergence by"""

    def over(self, steps: int) -> bool:
        """Whether a run of so many steps has nothing left to do."""
        return (self.step == steps or self.watch.diverged is not None) and not self.unfinished


def folder_of(root: Path, step: int) -> Path:
    """Returns the folder of the checkpoint of `step`."""
    return root / f"step-{step:08d}"


def load_state(folder: Path) -> State:
    """Returns the state.json of a complete checkpoint; raises UserError if it is not one."""
    found = read_json(folder / STATE)
    if not isinstance(found, dict):
        raise UserError(f"{folder / STATE} is not the state of a run")
    state = from_dict(State, found, f"{folder}: ")
    counts = (state.tokens, state.samples, state.losses_seen)
    if folder != folder_of(folder.parent, state.step) or min(counts) < 0:
        raise UserError(f"{folder / STATE} belongs to another checkpoint")
    return state


def folders(root: Path) -> dict[int, Path]:
    """Step -> folder of everything under `root` that has a checkpoint's name, oldest first.

    Links are left out, and `root` itself must not be one: what they lead to belongs to another run.
    Raises UserError if `root` may not be read: taken as empty, the run would start over.
    """
    refuse_link(root)
    try:
        inside = list(root.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {root}: {reason(error)}") from error
    named = {path: re.fullmatch(r"step-(\d{8,18})", path.name) for path in inside}
    found = {
        int(match[1]): path
        for path, match in named.items()
        if match and path.is_dir() and not path.is_symlink()
    }
    return dict(sorted(found.items()))


def links(root: Path) -> list[str]:
    """A line for each link under `root`."""
    found = sorted(path for path in root.glob("*") if path.is_symlink())
    return [f"{path} is a link, which is neither followed nor deleted" for path in found]


def newest(root: Path, most: int | None = None) -> tuple[Path | None, list[str]]:
    """Returns the newest complete checkpoint under `root`, and a line for each newer one that is
    damaged.

    most: only checkpoints of at most so many steps count.
    """
    damaged = []
    for step, folder in reversed(folders(root).items()):
        if most is not None and step > most:
            continue
        wrong = damage(folder)
        if wrong is None:
            return folder, damaged
        damaged.append(f"checkpoint {folder} is damaged ({wrong})")
    return None, damaged


def damage(folder: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None if every file is as its marker says."""
    marker = folder / MARKER
    try:
        if not stat.S_ISREG(marker.lstat().st_mode):
            return f"{MARKER} is not a file"
    except FileNotFoundError:
        return "writing it was interrupted"
    except OSError as error:  # not skipped: the newest checkpoint would be lost
        raise UserError(f"cannot read {marker}: {reason(error)}") from error
    try:
        promised = read_json(marker)
    except UserError as error:
        return str(error)
    if not isinstance(promised, dict):
        return f"{MARKER} is not a list of files"
    names = {path.name for path in parts(folder)}
    for name in sorted(promised.keys() | names):
        if name not in names:
            return f"{name} is missing"
        try:
            # Its size first: hashing a file that somebody made endless would not end.
            if not has_size(folder / name, promised.get(name)):
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    try:
        actual = fingerprints(folder)
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read: {error.strerror}"
    except UserError as error:  # a link to elsewhere
        return str(error)
    changed = next((name for name in actual if promised[name] != actual[name]), None)
    return None if changed is None else f"{changed} is not what was written"


def has_size(path: Path, promised: Any) -> bool:
    """Returns whether a file is as large as its marker says; OSError for what is not a file."""
    if not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return isinstance(promised, dict) and path.stat().st_size == promised.get("size")


def parts(folder: Path) -> list[Path]:
    """Returns the files of a checkpoint except the marker, by name.

    A checkpoint has no hidden files of its own: they are a file manager's or a network disk's.
    """
    return sorted(path for path in folder.iterdir() if path.name != MARKER and path.name[0] != ".")


def fingerprints(folder: Path) -> dict[str, dict[str, int | str]]:
    """File name -> fingerprint, for every file of a checkpoint but the marker and hidden ones."""
    files = parts(folder)
    with ThreadPoolExecutor() as pool:  # hashing holds no lock of Python's
        return dict(zip((path.name for path in files), pool.map(fingerprint, files), strict=True))


def fingerprint(path: Path) -> dict[str, int | str]:
    """Size and sha256 of a file; OSError for what is not a file: reading it might never end."""
    if not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    with open_given(path, path.parent) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def prune(newest: Path, keep_last: int, keep_every: int | None = None) -> None:
    """Delete checkpoints older than `newest`, complete and just written, so that `keep_last` remain
    and those of every `keep_every` steps.

    Also deletes what interrupted savings left behind.
    """
    root = newest.parent
    this = int(newest.name.removeprefix("step-"))
    older = {step: path for step, path in folders(root).items() if step < this}
    for step in list(older)[: max(len(older) + 1 - keep_last, 0)]:
        if keep_every is None or step % keep_every:
            discard(older[step])
    for pattern in (".writing-*", ".removing-*"):
        for leftover in root.glob(pattern):
            if not leftover.is_symlink():
                remove(leftover)


def discard(folder: Path) -> None:
    """Delete a checkpoint so that, whenever this is interrupted, no part of it looks like one."""
    hidden = hide(folder)
    if hidden is not None:
        remove(hidden)


def hide(folder: Path) -> Path | None:
    """Give a checkpoint a name that no checkpoint has; None if it is not there."""
    if not folder.exists():
        return None
    # A new name each time: what an earlier call could not delete may still be there.
    hidden = folder.with_name(f".removing-{folder.name}-{token_hex(8)}")
    folder.rename(hidden)
    return hidden


def remove(folder: Path) -> None:
    """Delete a hidden folder; one with a file that is still being read over NFS stays for now.

    There such a file becomes `.nfs…` until its last reader closes it. The next pruning tries again.
    """
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
