"""Streams that cannot be written: the work continues, and no result is lost in silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_recipe import tiny_recipe

from unitsphere.cli import main, output

RECIPE = tiny_recipe("ngpt", model={"d_model": 16}, steps=3, batch_tokens=32, log_every=1)

SAYS = """
import contextlib, os, sys
from unitsphere.cli import output
output.secure_streams()
file = open(sys.argv[1], "w")
assert file.fileno() > 2
print("said", file=sys.stderr, flush=True)
with contextlib.suppress(OSError):
    os.write(2, b"said by a library")
status = 0
try:
    print("result", flush=True)
except OSError:
    output.drop(sys.stdout)
    status = 2
print("more", file=sys.stderr)
file.write("done")
file.close()
sys.exit(status)
"""


@pytest.fixture
def gone():
    """A text stream whose reader has left."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as stream:
        yield stream
        output.drop(stream)


def test_a_training_whose_stderr_is_gone_continues_to_its_end(tmp_path, monkeypatch, gone):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(RECIPE)
    Path("text.txt").write_text("The cat sat on the mat, and that was that.\n" * 50)
    monkeypatch.setattr(sys, "stderr", output.Unfailing(gone))
    assert main(["train", "tiny.toml", "--out", "run"]) == 0
    assert Path("run/checkpoints/step-00000003/COMPLETE").is_file()


def test_what_is_gone_is_known(gone):
    assert output.reader_has_left(gone)
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as stream:
        assert not output.reader_has_left(stream)


@pytest.mark.parametrize(
    ("redirected", "status"),
    [("2>&-", 0), ("2>/dev/full", 0), ("2>&1 | true", None), (">&-", 2), (">/dev/full 2>&-", 2)],
)
def test_no_stream_ends_the_program_or_hides_a_lost_result(redirected, status, tmp_path):
    command = f'set -o pipefail; "$0" -c "$1" "$2" {redirected}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, SAYS, str(tmp_path / "file")],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (tmp_path / "file").read_text() == "done"
    if status is not None:
        assert done.returncode == status
