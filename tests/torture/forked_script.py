"""The scripts of this folder, each in a process forked for it: only that one is harmed."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from forked import Forked

SECONDS = 7000


def run(name: str, *words: object, folder: Path) -> Any:
    """What a script prints: one JSON document."""
    process = Forked(_main, name, [str(word) for word in words], folder=folder)
    out, err = process.communicate(SECONDS)
    assert process.poll() == 0, err[-3000:]
    return json.loads(out)


def _main(name: str, words: list[str]) -> None:
    sys.argv = [name, *words]
    importlib.import_module(name).main()
