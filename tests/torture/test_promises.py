"""docs/reliability.md names a test for each promise: it is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_has_its_test() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 30
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert all("::test_" in row for row in rows), rows
