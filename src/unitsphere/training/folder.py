"""A run's folder: who may train in it, its config, and what it says of itself."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from glob import has_magic
from itertools import count
from os.path import exists
from pathlib import Path
from typing import Any

from unitsphere.config import differences, read_json, to_dict
from unitsphere.data.prepare import absolute, input_fingerprint, located
from unitsphere.errors import UserError
from unitsphere.files import own_folder, read_bytes, write_bytes, write_text
from unitsphere.training import checkpoint
from unitsphere.training.config import FREE_KEYS, LENGTH_KEYS, PLACES, RunConfig
from unitsphere.training.log import LIMIT, METRICS, SAMPLES, parse
from unitsphere.training.recipes import load_recipe

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
EVALUATIONS = "tasks.jsonl"
TOKENIZER = "tokenizer.json"


def saved_config(out: Path) -> RunConfig | None:
    """The config of the run in `out`; None for an empty folder, a `UserError` for any other."""
    if (out / CONFIG).is_file():
        return load_recipe(out / CONFIG)
    if not is_empty(out):
        raise UserError(f"{out} is not empty and holds no run: give --out another folder")
    return None


def is_empty(out: Path) -> bool:
    """Whether a folder holds nothing but hidden files."""
    return all(path.name.startswith(".") for path in out.iterdir())


def check_same(out: Path, saved: RunConfig, config: RunConfig, resize: bool = False) -> None:
    """Raise UserError unless `config` may resume the run of `saved`.

    With `resize` the keys of a run's length may differ, if nothing else does.
    """
    odd = other_settings(out, saved, config)
    if not (resize and all(line.partition(":")[0] in LENGTH_KEYS for line in odd)) and odd:
        raise UserError(
            f"{out} holds a run of another config ({'; '.join(odd)}): give its own settings to "
            "go on with it, or another --out"
        )


def other_settings(out: Path, saved: RunConfig, config: RunConfig) -> list[str]:
    """What makes `config` another run than that of `saved`, in `out`: `key: saved -> asked` each.

    Keys in FREE_KEYS may differ, and those in PLACES if the same data are at both. All others
    decide what is learned; `train.steps` too, since the schedule is stretched over them.
    """
    if saved.architecture != config.architecture:
        return [f"architecture: {saved.architecture!r} -> {config.architecture!r}"]
    saved, config = at_places(saved), at_places(config)
    changed = {line.partition(":")[0]: line for line in differences(saved, config)}
    odd = {key: line for key, line in changed.items() if key not in FREE_KEYS}
    others = [line for key, line in odd.items() if key not in PLACES]
    if len(others) == len(odd) or (not others and holds_data_of(out, saved, config)):
        return others
    return list(odd.values())


def at_places(config: RunConfig) -> RunConfig:
    """The config with paths that mean the same from any working directory."""
    init = None if config.init is None else absolute(config.init)
    return replace(config, init=init, data=located(config.data))


def holds_data_of(out: Path, saved: RunConfig, config: RunConfig) -> bool:
    """Whether the data of `config` are, to the byte, those of the run `saved` in `out`.

    A run that has not recorded what it read is asked for its source as it is now.
    """
    recorded = last_data(out)
    if recorded is None and exists(saved.data.source):
        recorded = input_of(saved)
    return recorded is not None and recorded == input_of(config)


def input_of(config: RunConfig) -> str:
    """The fingerprint of what a run's tokens are made from."""
    return input_fingerprint(config.data, pairs=config.objective == "seq2seq")


def last_data(out: Path) -> str | None:
    """The fingerprint of the data that the run in `out` read last; None if it is not recorded."""
    path = out / ENVIRONMENT
    found = read_json(path) if path.is_file() else None
    resumed = found.get("resumed") if isinstance(found, dict) else None
    last = resumed[-1] if isinstance(resumed, list) and resumed else found
    data = last.get("data") if isinstance(last, dict) else None
    fingerprint = data.get("fingerprint") if isinstance(data, dict) else None
    return fingerprint if isinstance(fingerprint, str) else None


def check_there(out: Path, config: RunConfig) -> None:
    """Raise UserError, with what to do, if the data of the run in `out` are not at their place."""
    for key, place in (("source", config.data.source), ("validation", config.data.validation)):
        if place is None or place == "stdlib" or has_magic(place) or exists(place):
            continue
        raise UserError(
            f"no such file: {place}, which {out} is trained on; if it was moved, add "
            f"--data.{key} with its new place: the same contents resume"
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
    own_folder(kept / "checkpoints")
    for name in (CONFIG, ENVIRONMENT, TOKENIZER, METRICS, SAMPLES):
        if (out / name).is_file():
            write_bytes(kept / name, read_bytes(out / name, within=out, limit=LIMIT))
    for path in later:
        path.rename(kept / "checkpoints" / path.name)
    return kept


def remove_leftovers(out: Path) -> None:
    """Delete what `files.aside` left half written where a process was killed."""
    for left in out.glob(".*.writing-*"):
        if left.is_file():
            left.unlink()


def write_config(out: Path, config: RunConfig) -> None:
    """Write config.json; `load_recipe` of it gives an equal config."""
    write_text(out / CONFIG, json.dumps(to_dict(config), indent=2) + "\n")


def write_environment(out: Path, found: dict[str, Any], step: int) -> None:
    """Write environment.json: where the run began, and under "resumed" where it went on."""
    path = out / ENVIRONMENT
    if step and path.is_file():
        first = read_json(path)
        if not isinstance(first, dict) or not isinstance(first.get("resumed", []), list):
            raise UserError(f"{path} is not what was written: delete it")
        found = first | {"resumed": [*first.get("resumed", []), {"step": step} | found]}
    write_text(path, json.dumps(found, indent=2) + "\n")


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


def read_evaluations(out: Path) -> list[dict[str, Any]]:
    """What `eval --tasks` found of the run, oldest first.

    Each has `step`, `tokens` (trained on), `context`, and `tasks` as `eval` prints them.
    """
    path = out / EVALUATIONS
    lines = read_bytes(path, within=out).splitlines() if path.is_file() else []
    found = [record for record in map(parse, lines) if record is not None]
    return [
        r for r in found if isinstance(r.get("tokens"), int) and isinstance(r.get("tasks"), dict)
    ]


def add_evaluation(out: Path, found: dict[str, Any]) -> None:
    """Add to the run's evaluations; one of the same step, context and tasks is replaced."""

    def what(record: dict[str, Any]) -> tuple[Any, ...]:
        tasks = [(n, t.get("shots"), t.get("items")) for n, t in record["tasks"].items()]
        return record.get("step"), record.get("context"), tasks

    kept = [record for record in read_evaluations(out) if what(record) != what(found)]
    write_text(out / EVALUATIONS, "".join(json.dumps(r) + "\n" for r in [*kept, found]))
