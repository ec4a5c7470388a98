"""Which runs this user has made: only their configs may say what is read without --data.

A config names paths, and a run folder may come from somebody else. So `train` signs the data
settings of each run with a key that only this user has, and writes the signature into
environment.json. A run is the user's own if one of its signatures fits its data settings: on every
machine that shares the user's state folder, wherever the run folder lies. Nobody else can sign.
"""

import hashlib
import hmac
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from unitsphere.config import read_json, to_dict
from unitsphere.data.config import DataConfig
from unitsphere.data.manifest import is_prepared
from unitsphere.data.prepare import absolute
from unitsphere.data.sources import STANDARD_INPUT, find_files
from unitsphere.data.tokenizer import is_name
from unitsphere.errors import UserError
from unitsphere.files import read_bytes, reason
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import ENVIRONMENT
from unitsphere.training.load import run_and_checkpoint

SIGNATURE = "signature"
"""The key of environment.json."""
KEY_BYTES = 32


def key_file() -> Path:
    """Where the user's key lies: in $XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
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


def check_own_data(run: Path, config: RunConfig) -> None:
    """Raise UserError unless the data that the config of `run` names may be read and prepared.

    They may if this user has made the run, if all of them lie in its folder, or if they are the
    standard library's. `run` may also be one of its checkpoints.
    """
    run, _ = run_and_checkpoint(run)
    data = config.data
    if made_here(run, data) or lies_inside(run, data) or is_everybodys(data):
        return
    raise UserError(
        f"{run} was not made by you here, and its data ({config.data.source}) lie outside of its "
        "folder: say which data to read with --data"
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
