"""A run's folder: who may train in it, its config, and what it says of itself."""

import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import has_magic
from itertools import chain, count
from os.path import exists
from pathlib import Path
from typing import Any

from unitsphere.config import json_text, read_json, to_dict
from unitsphere.data.config import DataConfig
from unitsphere.data.prepare import absolute
from unitsphere.data.shards import is_prepared
from unitsphere.data.sources import STANDARD_INPUT, find_files
from unitsphere.data.tokenizer import is_name
from unitsphere.errors import UserError
from unitsphere.files import (
    is_at,
    own_folder,
    read_bytes,
    reason,
    replacing,
    write_bytes,
    write_text,
)
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.config import RunConfig
from unitsphere.training.log import LIMIT, METRICS, SAMPLES, parse

CHECKPOINTS = "checkpoints"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
EVALUATIONS = "tasks.jsonl"
TOKENIZER = "tokenizer.json"


def check_there(out: Path, config: RunConfig) -> None:
    """Raise UserError, with what to do, if the data of the run in `out` are not at their place."""
    for key, place in (("source", config.data.source), ("validation", config.data.validation)):
        if place is None or place == "stdlib" or has_magic(place) or exists(place):
            continue
        raise UserError(
            f"no such file: {place}, which {out} is trained on; if it was moved, add "
            f"--data.{key} with its new place: the same contents resume"
        )
    tokenizer = config.data.tokenizer
    if tokenizer is not None and not is_name(tokenizer) and not exists(tokenizer):
        raise UserError(
            f"no such file: {tokenizer}, the tokenizer of {out}; add --data.tokenizer "
            f"{out / TOKENIZER}, the run's copy of it"
        )


def keep_end(out: Path, step: int) -> Path | None:
    """Move what a run did after `step` into a run folder inside `out`; None if it did nothing.

    For a run that continues differently from `step` on. The folder gets the later checkpoints, and
    copies of config, log, samples and evaluations.
    """
    root = out / CHECKPOINTS
    later = [path for at, path in checkpoint.folders(root).items() if at > step]
    later = [path for path in later if checkpoint.damage(path) is None]
    if not later:
        return None
    name = f"end-at-{checkpoint.load_state(later[-1]).step}"
    names = chain([name], (f"{name}-{n}" for n in count(2)))
    kept = next(path for name in names if not (path := out / name).exists())
    own_folder(kept / CHECKPOINTS)
    for name in (CONFIG, ENVIRONMENT, TOKENIZER, METRICS, SAMPLES, EVALUATIONS):
        if (out / name).is_file():
            write_bytes(kept / name, read_bytes(out / name, within=out, limit=LIMIT))
    for path in later:
        path.rename(kept / CHECKPOINTS / path.name)
    return kept


def remove_leftovers(out: Path) -> None:
    """Delete what `files.aside` left half written when a process was killed."""
    for left in out.glob(".*.writing-*"):
        if left.is_file():
            left.unlink()


def write_config(out: Path, config: RunConfig) -> None:
    """Write config.json; `load_recipe` of it gives an equal config."""
    write_text(out / CONFIG, json.dumps(to_dict(config), indent=2) + "\n")


def write_environment(out: Path, found: dict[str, Any], step: int) -> None:
    """Write environment.json: where the run started, and under "resumed" where it was resumed."""
    path = out / ENVIRONMENT
    if step and path.is_file():
        first = read_json(path)
        if not isinstance(first, dict) or not isinstance(first.get("resumed", []), list):
            raise UserError(f"{path} is not what was written: delete it")
        found = first | {"resumed": [*first.get("resumed", []), {"step": step} | found]}
    write_text(path, json.dumps(found, indent=2) + "\n")


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Raise a refusal to write (full disk, quota, read-only) as a `UserError` that names `out`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES):
            raise
        raise UserError(
            f"cannot write to {out}: {error.strerror}; complete checkpoints are kept, and when "
            "that is fixed the same command resumes"
        ) from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the folder, made if need be, for this process; removed again if it stays empty.

    So are the folders around it that were made for it.
    Raises UserError if another process holds it: the system frees it when that process ends,
    however it ends.
    """
    around = [folder for folder in out.parents if not folder.exists()]
    handle = _lock(out)
    while not is_at(handle, out, follow=True):  # the process before us has just removed it
        os.close(handle)
        handle = _lock(out)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty, or removed by somebody else
            for folder in (out, *around):
                folder.rmdir()
        os.close(handle)


def _lock(out: Path) -> int:
    """A descriptor that holds the lock on the folder, which is made if need be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        what = "it is a file" if out.is_file() else error.strerror
        raise UserError(f"cannot use {out} as folder: {what}; give another --out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(f"another process trains in {out}: wait for it, or stop it") from error
    except OSError as error:
        os.close(handle)
        raise UserError(
            f"cannot lock {out} ({error.strerror}): its file system must support flock, "
            "which keeps two processes from training in it at once"
        ) from error
    return handle


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

    with replacing(out / EVALUATIONS):  # several may be made at once
        kept = [record for record in read_evaluations(out) if what(record) != what(found)]
        write_evaluations(out, [*kept, found])


def cut_evaluations(out: Path, step: int) -> None:
    """Drop evaluations of weights after `step`: the run that resumes there never has them."""
    if not any(record["step"] > step for record in read_evaluations(out)):
        return
    with replacing(out / EVALUATIONS):  # one may be added at the same time
        kept = [record for record in read_evaluations(out) if record["step"] <= step]
        write_evaluations(out, kept)


def write_evaluations(out: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write tasks.jsonl, a line for each evaluation."""
    write_text(out / EVALUATIONS, "".join(json_text(record, None) + "\n" for record in records))


def run_and_checkpoint(path: Path) -> tuple[Path, Path | None]:
    """The run folder, and the checkpoint if `path` is one of the run's checkpoints."""
    run = path.absolute().parent.parent
    if path.absolute().parent.name == CHECKPOINTS and (run / CONFIG).is_file():
        return run, path
    return path, None


SIGNATURE = "signature"
"""The key of environment.json."""
KEY_BYTES = 32


def key_file() -> Path:
    """The path of the user's key: in $XDG_STATE_HOME, or ~/.local/state."""
    named = os.environ.get("XDG_STATE_HOME", "")
    # The standard of XDG_STATE_HOME ignores a relative path.
    state = named if os.path.isabs(named) else os.path.expanduser("~/.local/state")
    return Path(state, "unitsphere", "key")


def signature(data: DataConfig) -> str | None:
    """The user's signature of a run's data settings; None if the key cannot be kept."""
    try:
        key = make_key(key_file())
    except OSError as error:
        print(
            f"cannot keep a key in {key_file()} ({reason(error)}): eval and inspect of this run "
            "will ask for --data",
            file=sys.stderr,
        )
        return None
    return signed(key, data)


def signed(key: bytes, data: DataConfig) -> str:
    """The settings' keyed hash, as hexadecimal digits."""
    text = json.dumps(to_dict(data), sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def make_key(path: Path) -> bytes:
    """The user's key, drawn the first time; of processes that begin at once, one draws it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        drawn = path.with_name(f".key-{secrets.token_hex(8)}")
        handle = os.open(drawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(drawn, path)  # never over another process's
        except FileExistsError:
            pass
        finally:
            drawn.unlink()
    return read_key(path)


def read_key(path: Path) -> bytes:
    """The user's key; a `UserError` if it is not one."""
    key = read_bytes(path, limit=KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise UserError(f"{path} is not a key of unitsphere: delete it")
    return key


def made_here(run: Path, data: DataConfig) -> bool:
    """Whether this user has trained `run` with these data settings, or resumed it."""
    if not (run / ENVIRONMENT).is_file() or not key_file().is_file():
        return False
    expected = signed(read_key(key_file()), data)
    return any(hmac.compare_digest(expected, one) for one in signatures(run))


def signatures(run: Path) -> list[str]:
    """All that environment.json holds."""
    found: Any = read_json(run / ENVIRONMENT)
    if not isinstance(found, dict):
        return []
    resumed = found.get("resumed", [])
    records = [found, *(resumed if isinstance(resumed, list) else [])]
    kept = [record.get(SIGNATURE) for record in records if isinstance(record, dict)]
    return [one for one in kept if isinstance(one, str) and one.isascii()]


def check_own_data(
    run: Path, config: RunConfig, todo: str = "say which data to read with --data"
) -> None:
    """Raise UserError unless the data that the config of `run` names may be read and prepared.

    They may if this user has made the run, if all of them lie in its folder, or if they are the
    standard library's. `run` may also be one of its checkpoints. `todo` ends the error.
    """
    run, _ = run_and_checkpoint(run)
    data = config.data
    if made_here(run, data) or lies_inside(run, data) or is_everybodys(data):
        return
    raise UserError(
        f"{run} is not a run that you made on this computer, and its data "
        f"({config.data.source}) are outside its folder: {todo}"
    )


def is_everybodys(data: DataConfig) -> bool:
    """Whether it is the standard library, prepared where a run of the user's own keeps it."""
    names = data.validation is None and (data.tokenizer is None or is_name(data.tokenizer))
    here = absolute(data.cache) == absolute(DataConfig().cache)
    return data.source == "stdlib" and names and here


def lies_inside(run: Path, data: DataConfig) -> bool:
    """Whether a config's source, and all else that it makes read or write, is in the run folder."""
    if data.source in ("stdlib", *STANDARD_INPUT) or not is_inside(data.source, run):
        return False
    named = [data.source, data.validation, data.tokenizer]
    files = [name for name in named if name is not None and not is_name(name)]
    if not is_prepared(data.source):
        files.append(data.cache)
    if not all(is_inside(file, run) for file in files):
        return False
    within: list[Path] = []
    for source in filter(None, (data.source, data.validation)):
        within += Path(source).iterdir() if is_prepared(source) else find_files(source)
    return all(is_inside(str(file), run) for file in within)


def is_inside(path: str, run: Path) -> bool:
    """Whether a path, its links followed, leads into the run folder."""
    return Path(os.path.expanduser(path)).resolve().is_relative_to(run.resolve())
