"""Commands as they are typed, in this process: what they print, or the line they end with."""

import json
from typing import Any

from unitsphere.cli import main


def printed(capture, *argv: str) -> Any:
    """The one JSON document that a command prints on stdout."""
    assert main([*argv, "--json"]) == 0
    return json.loads(capture.readouterr().out)


def refused(capture, *argv: str) -> str:
    """The one line that a command ends with which must be refused."""
    assert main(list(argv)) == 2
    captured = capture.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("unitsphere: error: ")
    assert captured.out == ""
    return lines[0]
