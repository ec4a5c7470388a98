"""Thousands of steps with records, validations, samples and checkpoints: nothing piles up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.conftest import LONG

STEPS = 10_000 if LONG else 500
PROGRAM = """
import dataclasses, json, os, sys
import torch
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

torch.set_num_threads(1)
seen = []

def look(*_):
    pages = int(open("/proc/self/statm").read().split()[1])
    seen.append([pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))])
    return ""

config, steps = load_recipe(sys.argv[1]), int(sys.argv[3])
often = {"save_every": 25, "eval_every": 25, "eval_tokens": 64, "log_every": 5}
settings = {"steps": steps, "micro_batch": None, "sample_every": steps // 10, "on_spike": "skip"}
settings |= {"spike_sigma": 50.0}
train_config = dataclasses.replace(config.train, **often, **settings)
train(dataclasses.replace(config, train=train_config), sys.argv[2], sampler=look)
print(json.dumps(seen))
"""


@pytest.mark.timeout(7200)
def test_memory_and_open_files_stay_flat(config_file: Path, tmp_path: Path, tally) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config_file), str(tmp_path / "run"), str(STEPS)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert len(seen) == 10
    memory, files = zip(*seen, strict=True)
    late = max(memory[5:]) - max(memory[:5])
    print(f"{STEPS} steps: memory {[m >> 20 for m in memory]} MiB, open files {list(files)}")
    assert late < 4 << 20, memory
    assert max(files) <= files[0] + 1, files  # a checkpoint may be open just then
    tally(f"{STEPS} steps: memory and open files flat", 1, 1)
