"""A process that is slower than the others is named in the record, by its own time alone."""

import time
from pathlib import Path

import pytest
from parallel_launch import launch

from unitsphere.data.batch import Batch
from unitsphere.data.batches import Prefetch
from unitsphere.training.distributed.processes import slowest
from unitsphere.training.folder import write_config
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train


def one_is_late(rank: int, folder: Path) -> None:
    """A run in which the batches of the second process come late."""
    original = Prefetch.rows

    def late(self: Prefetch, step: int, first: int, count: int) -> Batch:
        time.sleep(0.5 * rank)  # far longer than a step on a busy machine
        return original(self, step, first, count)

    Prefetch.rows = late
    train(load_recipe(folder / "config.json"), folder / "run")


@pytest.mark.timeout(120)
def test_a_straggler_shows_in_the_log(tiny, tmp_path):
    write_config(tmp_path, tiny(steps=6, log_every=2, eval_every=0, save_every=0))
    printed = launch(one_is_late, 2, tmp_path)
    first, *records = read_metrics(tmp_path / "run")
    assert "slowest_rank" not in first
    assert [record["step"] for record in records] == [2, 4, 6]
    for record in records:
        assert record["slowest_rank"] == 1
        assert record["slowest_ratio"] > 1.5
    assert printed.count("rank 1 of 2 is slow") == 1
    assert printed.count("slowest rank 1") == 3


def test_a_single_process_compares_nothing(tiny, tmp_path):
    train(tiny(steps=3), tmp_path / "run")
    for record in read_metrics(tmp_path / "run"):
        assert not {"slowest_rank", "slowest_ratio"} & record.keys()


def test_it_is_measured_by_the_median_of_the_others():
    assert slowest([1.0, 3.0]) == (1, 3.0, 2.0)
    assert slowest([8.0, 1.0, 2.0, 9.0, 3.0]) == (3, 3.6, 6.5)
