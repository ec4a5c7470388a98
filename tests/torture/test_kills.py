"""A run that is killed at random moments ends as the run that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.conftest import LONG

KILLS = 200 if LONG else 6


@pytest.mark.timeout(7200)
def test_killed_at_random_moments(config_file, tmp_path, tally):
    seed = "0"
    program = [sys.executable, str(Path(__file__).with_name("kill_runs.py"))]
    done = subprocess.run(
        [*program, str(config_file), str(tmp_path), seed, str(KILLS)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["SIGKILL"] == KILLS
    assert counts["slowest_stop"] < 20
    tally("SIGKILL at a random moment", KILLS, KILLS, counts["lost"])
    if counts["SIGTERM"]:
        tally("SIGTERM at a random moment", counts["SIGTERM"], counts["SIGTERM"])
