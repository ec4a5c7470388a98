"""Whatever file operation a saving dies at or is refused, the last good checkpoint serves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.conftest import LONG


@pytest.mark.timeout(7200)
def test_every_file_operation_of_a_saving(tmp_path, tally):
    program = [sys.executable, str(Path(__file__).with_name("fault_saves.py"))]
    done = subprocess.run(
        [*program, str(tmp_path), "long" if LONG else "short"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert not found["wrong"], found["wrong"][:5]
    refused = {name.removeprefix("refuse at ") for name in found["counts"]} - {"kill at killed"}
    assert refused >= {"open", "write", "fsync", "rename", "mkdir"}
    for what, counts in found["counts"].items():
        name = what.replace("kill at killed", "SIGKILL at each file operation")
        tally(f"saving: {name}", counts["faults"], counts["survived"])
