"""A run's folder: who may train in it, its config, and what it says of itself."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from unitsphere.config import differences, read_json, to_dict
from unitsphere.errors import UserError
from unitsphere.training import checkpoint
from unitsphere.training.config import FREE_KEYS, LENGTH_KEYS, RunConfig
from unitsphere.training.log import METRICS, SAMPLES, replace
from unitsphere.training.recipes import load_recipe

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
TOKENIZER = "tokenizer.json"


def saved_config(out: Path) -> RunConfig | None:
    """The config of the run in `out`; None for an empty folder, a `UserError` for any other."""
    if (out / CONFIG).is_file():
        return load_recipe(out / CONFIG)
    if any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no run: give --out another folder")
    return None


def check_same(out: Path, saved: RunConfig, config: RunConfig, resize: bool = False) -> None:
    """Raise UserError unless `config` may resume the run of `saved`.

    Keys in FREE_KEYS may differ. All others decide what is learned; `train.steps` too, since
    the schedule is stretched over them: with `resize` its keys may differ if nothing else does.
    """
    if saved.architecture != config.architecture:
        odd = [f"architecture: {saved.architecture!r} -> {config.architecture!r}"]
    else:
        changed = differences(saved, config)
        odd = [line for line in changed if line.partition(":")[0] not in FREE_KEYS]
    if not (resize and all(line.partition(":")[0] in LENGTH_KEYS for line in odd)) and odd:
        raise UserError(
            f"{out} holds a run of another config ({'; '.join(odd)}): give its own settings to "
            "go on with it, or another --out"
        )


def numbered(path: Path, number: int) -> Path:
    """`path` the first time, `path-2` the second, …"""
    return path if number == 1 else path.with_name(f"{path.name}-{number}")


def keep_end(out: Path, step: int) -> Path | None:
    """Move what a run did after `step` into a run folder inside `out`; None if it did nothing.

    For a run that shall take another way from `step` on: its checkpoints from there on are in the
    folder, its config, log and samples too.
    """
    root = out / "checkpoints"
    later = [path for at, path in checkpoint.folders(root).items() if at > step]
    later = [path for path in later if checkpoint.damage(path) is None]
    if not later:
        return None
    kept = out / f"end-at-{checkpoint.load_state(later[-1]).step}"
    kept = next(path for n in count(1) if not (path := numbered(kept, n)).exists())
    (kept / "checkpoints").mkdir(parents=True)
    for name in (CONFIG, ENVIRONMENT, TOKENIZER, METRICS, SAMPLES):
        if (out / name).is_file():
            shutil.copyfile(out / name, kept / name)
    for path in later:
        path.rename(kept / "checkpoints" / path.name)
    return kept


def write_config(out: Path, config: RunConfig) -> None:
    """Write config.json; `load_recipe` of it gives an equal config."""
    replace(out / CONFIG, json.dumps(to_dict(config), indent=2) + "\n")


def write_environment(out: Path, found: dict[str, Any], step: int) -> None:
    """Write environment.json: where the run began, and under "resumed" where it went on."""
    path = out / ENVIRONMENT
    if step and path.is_file():
        first = read_json(path)
        if not isinstance(first, dict) or not isinstance(first.get("resumed", []), list):
            raise UserError(f"{path} is not what was written: delete it")
        found = first | {"resumed": [*first.get("resumed", []), {"step": step} | found]}
    replace(path, json.dumps(found, indent=2) + "\n")


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Retell a refusal to write (full disk, quota, read-only) as a `UserError` that names `out`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES):
            raise
        raise UserError(
            f"cannot write to {out}: {error.strerror}; complete checkpoints are kept, and when "
            "that is mended the same command goes on"
        ) from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the folder, made if need be, for this process; removed again if it stays empty.

    Raises UserError if another process holds it: the system frees it when that process ends,
    however it ends.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"cannot use {out} as run folder: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(f"another process trains in {out}: wait for it, or stop it") from error
    except OSError as error:
        os.close(handle)
        raise UserError(
            f"cannot lock {out} ({error.strerror}): its file system must allow flock, as others "
            "could train in it at the same time"
        ) from error
    try:
        yield
    finally:
        os.close(handle)
        if not any(out.iterdir()):
            out.rmdir()
