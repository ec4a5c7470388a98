"""Whole runs in two processes: what one of them gets wrong or is told, all of them know."""

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from forked import Forked
from parallel_launch import SECONDS, free_port, launch
from run_folders import figures, weights
from torch.distributed.distributed_c10d import _set_pg_timeout

from unitsphere.cli import main
from unitsphere.errors import Preempted, UserError
from unitsphere.inference.samples import write_sample
from unitsphere.training import run
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import Corpus
from unitsphere.training.distributed import processes
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.distributed.processes import (
    SharedError,
    local_first,
    on_all_ranks,
    on_first,
)
from unitsphere.training.folder import write_config
from unitsphere.training.optim.average import AverageConfig
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train
from unitsphere.training.stop import Stop


def refused(config: RunConfig, out: Path) -> str:
    """What both processes say when they refuse to train."""
    with pytest.raises(SharedError) as error:
        train(config, out)
    assert not (out / "config.json").exists()
    return str(error.value)


def two_processes(rank: int, folder: Path) -> None:
    """Everything below that needs two processes, in an order that is the same in both."""
    config = load_recipe(folder / "config.json")
    said = {}
    faster = dataclasses.replace(config.optim, lr=config.optim.lr * (1 + rank))
    said["config"] = refused(dataclasses.replace(config, optim=faster), folder / "refused")

    own = folder / str(rank)
    own.mkdir()
    (own / "text.txt").write_text("a few words, and again. " * (100 + rank))
    os.chdir(own)
    data = dataclasses.replace(config.data, source="text.txt", cache="cache")
    said["data"] = refused(dataclasses.replace(config, data=data), folder / "refused")

    gone = dataclasses.replace(config.data, source=f"missing-{rank}" if rank else "text.txt")
    layout = Layout(rank, 2, rank)
    with pytest.raises(SharedError) as error:
        on_all_ranks(layout, partial(open_or_refuse, gone.source))
    said["mistake"] = str(error.value)
    assert on_first(layout, lambda: {"rank": rank}) == {"rank": 0}

    with pytest.raises(Preempted):
        interrupted(config, rank, folder / "run")
    preparing_takes_longer_than_the_timeout(config, rank, folder / "whole")
    said["hang"] = hang(layout)
    (folder / f"said-{rank}.json").write_text(json.dumps(said))


def open_or_refuse(name: str) -> None:
    """A mistake of one process alone."""
    if not Path(name).exists():
        raise UserError(f"there is no {name}")


def interrupted(config: RunConfig, rank: int, out: Path) -> None:
    """A run of which the second process alone is told to stop, after some steps."""
    asked = 0
    original = Stop.due

    def due(self: Stop) -> bool:
        nonlocal asked
        asked += 1
        self.requested |= rank == 1 and asked == 5
        return original(self)

    Stop.due = due
    try:
        train(config, out)
    finally:
        Stop.due = original


def preparing_takes_longer_than_the_timeout(config: RunConfig, rank: int, out: Path) -> None:
    """A whole run whose second process waits for the first, which prepares the data.

    Its waits are short only while that lasts.
    """

    def slow_in_first(layout: Layout, action: Callable[[], Corpus]) -> Corpus:
        def slow() -> Corpus:
            time.sleep(0 if rank else 2.5)
            return action()

        _set_pg_timeout(timedelta(seconds=1))
        try:
            return local_first(layout, slow)
        finally:
            _set_pg_timeout(timedelta(seconds=SECONDS))

    with (
        mock.patch.object(run, "local_first", slow_in_first),
        mock.patch.object(run, "train_steps", wraps=run.train_steps) as steps,
    ):
        train(config, out, sampler=write_sample)
    every_group_waits_as_long(steps.call_args.args[0].plan.layout, config.parallel.timeout)


def every_group_waits_as_long(layout: Layout, seconds: int) -> None:
    """Those that torch has made for the axes of the meshes, too."""
    groups = [*layout.mesh.get_all_groups(), *layout.data_mesh.get_all_groups()]
    made = [group for group in groups if group is not dist.group.WORLD]
    assert made
    for group in made:
        waits = group._get_backend(torch.device("cpu")).options._timeout
        assert waits == timedelta(seconds=seconds), group.group_desc


def hang(layout: Layout) -> str:
    """What the first process says when the second one does not come."""
    impatient = dist.new_group(backend="gloo", timeout=timedelta(seconds=1))
    processes.GRACE = timedelta(seconds=2)
    if layout.rank == 1:
        time.sleep(6)
        return ""
    with pytest.raises(UserError) as error, processes.watched(layout):
        dist.all_reduce(torch.zeros(1), group=impatient)
    return str(error.value)


@pytest.mark.timeout(300)
def test_two_processes_are_one_run(tiny, tmp_path):
    config = tiny("ngpt", steps=8, eval_every=4, save_every=3, sample_every=3)
    average = AverageConfig("ema", decay=0.6)
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, average=average))
    shards = dataclasses.replace(config.parallel, dp_shard=2)
    write_config(tmp_path, dataclasses.replace(config, parallel=shards))
    printed = launch(two_processes, 2, tmp_path)

    assert printed.count("step 1/8") == 2  # each run says it once
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1)]
    assert said[0] | {"hang": ""} == said[1]
    assert "rank 1 has another config than rank 0 (optim.lr: 0.01 -> 0.02)" in said[0]["config"]
    assert "rank 1 has another data than rank 0" in said[0]["data"]
    assert said[0]["mistake"] == "rank 1 of 2: there is no missing-1"
    assert "rank 1 of 2, which has hung or died" in said[0]["hang"]

    stopped_at = figures(tmp_path / "run")[-1]["step"]
    assert 0 < stopped_at < 8
    train(config, tmp_path / "run")
    train(config, tmp_path / "alone")
    alone = figures(tmp_path / "alone")
    assert alone[-1]["val_loss_average"] != alone[-1]["val_loss"]
    for name in ("run", "whole"):
        found = figures(tmp_path / name)
        assert [record.keys() for record in found] == [record.keys() for record in alone]
        for record, expected in zip(found, alone, strict=True):
            assert record == pytest.approx(expected, abs=1e-5), name
    samples = (tmp_path / "whole/samples.txt").read_text()
    assert re.findall(r"--- step (\d+)", samples) == ["3", "6", "8"]  # 3, 6: nothing is validated
    for name, tensor in weights(tmp_path / "alone").items():
        assert torch.allclose(tensor, weights(tmp_path / "run")[name], atol=1e-5), name


def torchrun(argv: list[str]) -> None:
    """What `torchrun --nproc-per-node 2 -m unitsphere` makes of itself, but that its workers are
    forked from a process with all imports.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
        rdzv_configs={"rank": 0, "timeout": 60},
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(),
    )
    elastic_launch(config, main)(argv)


def test_torchrun_starts_them(tiny, tmp_path):
    config = tiny("gpt", steps=4, eval_every=0, save_every=0)
    write_config(tmp_path, config)
    argv = ["train", str(tmp_path / "config.json"), "--parallel.tp", "2"]
    process = Forked(torchrun, [*argv, "--out", str(tmp_path / "run")], folder=tmp_path)
    _, said = process.communicate(timeout=120)
    assert process.poll() == 0, said
    assert said.count("step 4/4") == 1
    assert "predicted memory of each process" in said
    train(config, tmp_path / "alone")
    alone = figures(tmp_path / "alone")
    for record, expected in zip(figures(tmp_path / "run"), alone, strict=True):
        assert record == pytest.approx(expected, abs=1e-5)
    assert (tmp_path / "run/samples.txt").read_text().startswith("--- step 4")
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["processes"] == {"dp_replicate": 1, "dp_shard": 1, "tp": 2}
