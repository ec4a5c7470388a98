"""Live probes of a run that is spread over processes are those of one process."""

import dataclasses
from pathlib import Path

import pytest
from parallel_launch import launch
from run_folders import figures

from unitsphere.inspection.live import InspectConfig, live_probes
from unitsphere.training.distributed.layout import ParallelConfig
from unitsphere.training.folder import write_config
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

LAYOUTS = {
    "shards": ParallelConfig(dp_shard=2),
    "tensor": ParallelConfig(tp=2),
}


def both(rank: int, folder: Path) -> None:
    """The run on every layout."""
    config = load_recipe(folder / "config.json")
    for name, degrees in LAYOUTS.items():
        train(dataclasses.replace(config, parallel=degrees), folder / name)


@pytest.mark.timeout(300)
def test_probes_gather_what_is_spread(tiny, tmp_path):
    config = tiny("ngpt", steps=2, eval_every=0, save_every=0)
    config = dataclasses.replace(config, inspect=InspectConfig(1, ",".join(live_probes())))
    write_config(tmp_path, config)
    launch(both, 2, tmp_path)
    train(config, tmp_path / "alone")
    alone = figures(tmp_path / "alone")
    assert sum(key.startswith("probe/") for key in alone[-1]) > 80
    for name in LAYOUTS:
        for record, expected in zip(figures(tmp_path / name), alone, strict=True):
            assert record.keys() == expected.keys(), name
            assert record == pytest.approx(expected, rel=1e-3, abs=1e-6), name
