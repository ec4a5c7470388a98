"""A full disk, and a read-only one: a line says so, and with room again the run continues."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.conftest import LONG

NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def may_mount() -> bool:
    """Whether this system lets us mount in a namespace of our own."""
    try:
        command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.timeout(7200)
def test_a_full_and_a_read_only_disk(config_file, tmp_path, tally):
    if not may_mount():
        pytest.skip("this system mounts nothing for us")
    program = [sys.executable, str(Path(__file__).with_name("full_disk.py"))]
    done = subprocess.run(
        [*NAMESPACE, *program, str(config_file), str(tmp_path), "long" if LONG else "short"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["survived"] == counts["faults"], done.stderr[-3000:]
    tally("disk full or read-only", counts["faults"], counts["survived"], counts["lost"])
