"""A run that is killed at random moments ends as the run that was not."""

import dataclasses
import json
from pathlib import Path

import pytest
from torture.conftest import LONG
from torture.forked_script import run

from unitsphere.config import to_dict
from unitsphere.training.distributed.layout import ParallelConfig


def killed(config: Path, folder: Path, kills: int, processes: int, seed: int) -> dict[str, float]:
    """The counts of `kill_runs.py`."""
    counts = run("kill_runs", config, folder, seed, kills, processes, folder=folder)
    assert counts["SIGKILL"] + counts["one"] == kills
    assert counts["slowest_stop"] < 20
    return counts


@pytest.mark.timeout(7200)
def test_killed_at_random_moments(config_file, tmp_path, tally):
    kills = 120 if LONG else 6
    counts = killed(config_file, tmp_path, kills, processes=1, seed=0)
    tally("SIGKILL at a random moment", kills, kills, counts["lost"])
    if counts["SIGTERM"]:
        tally("SIGTERM at a random moment", counts["SIGTERM"], counts["SIGTERM"])


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("degree", ["dp_shard", "dp_replicate"] if LONG else ["dp_shard"])
def test_two_processes_killed_at_random_moments(degree, tiny_config, tmp_path, tally):
    kills = 40 if LONG else 2
    train = dataclasses.replace(tiny_config.train, steps=20, micro_batch=1)
    parallel = ParallelConfig(**{degree: 2}, timeout=60)
    config = dataclasses.replace(tiny_config, train=train, parallel=parallel)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    counts = killed(path, tmp_path, kills, processes=2, seed=583)  # one of each kind soon
    what = f"of 2 processes ({degree})"
    tally(f"SIGKILL {what}", counts["SIGKILL"], counts["SIGKILL"], counts["lost"])
    for name, fault in (("one", "SIGKILL of one"), ("SIGTERM", "SIGTERM")):
        if counts[name]:
            tally(f"{fault} {what}", counts[name], counts[name])
