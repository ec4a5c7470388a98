"""Thousands of steps with records, validations, samples and checkpoints: nothing piles up."""

from pathlib import Path

import pytest
from torture.conftest import LONG
from torture.forked_script import run

STEPS = 10_000 if LONG else 500


@pytest.mark.timeout(7200)
def test_memory_and_open_files_stay_flat(config_file: Path, tmp_path: Path, tally) -> None:
    seen = run("flat_run", config_file, tmp_path / "run", STEPS, folder=tmp_path)
    assert len(seen) == 10
    memory, files = zip(*seen, strict=True)
    late = max(memory[5:]) - max(memory[:5])
    print(f"{STEPS} steps: memory {[m >> 20 for m in memory]} MiB, open files {list(files)}")
    assert late < 4 << 20, memory
    assert max(files) <= files[0] + 1, files  # a checkpoint may be open just then
    tally(f"{STEPS} steps: memory and open files flat", 1, 1)
