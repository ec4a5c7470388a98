"""SIGKILL of a study's process: its jobs stop as by SIGTERM."""

import os
import signal
import subprocess
import sys
import time

PARENT = """
import sys
from pathlib import Path
from unitsphere.studies.core.local import Job, LocalExecutor, run_jobs
folder = Path(sys.argv[1])
jobs = [Job(n, [sys.executable, "-c", sys.argv[2], str(folder / n)], folder / n) for n in "ab"]
run_jobs(jobs, LocalExecutor(2))
"""

CHILD = """
import pathlib, signal, sys, time
from unitsphere.studies.core.local import end_with_parent
out = pathlib.Path(sys.argv[1])
def save(*_):
    (out / "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
end_with_parent()
out.mkdir()
while True:
    time.sleep(0.01)
"""


def test_jobs_end_with_the_process_that_follows_them(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD])
    wait_for(tmp_path / "a", tmp_path / "b")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(tmp_path / "a/saved", tmp_path / "b/saved")


def wait_for(*paths):
    end = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, paths
        time.sleep(0.02)
