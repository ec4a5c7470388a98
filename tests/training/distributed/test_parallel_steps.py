"""Steps of two processes: what is sent and in what type, spikes of one of them, compiled blocks."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from parallel_cases import ARCHITECTURES, losses, trainer_of
from parallel_launch import launch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unitsphere.ops.dtensor import whole
from unitsphere.training.distributed import parallelize
from unitsphere.training.distributed.layout import Degrees
from unitsphere.training.plan import Trainer
from unitsphere.training.step import update

FSDP2, TP, DDP = Degrees(dp_shard=2), Degrees(tp=2), Degrees(dp_replicate=2)


def trainer_with(name: str, layout: Degrees, rank: int, **train: object) -> Trainer:
    """A run of an architecture with other settings of training."""
    return trainer_of(dataclasses.replace(ARCHITECTURES[name], train=train), layout, rank)


def weights(trainer: Trainer) -> list[Tensor]:
    """All weights, whole."""
    return [whole(weight.detach()).clone() for weight in trainer.model.parameters()]


def gathered_in_bf16(rank: int) -> None:
    """Blocks send their matrices in bf16, and learn bit for bit what autocast alone learns."""
    for name in ("gpt-plus", "ngpt"):
        bf16 = partial(trainer_with, name, FSDP2, rank, precision="bf16", micro_batch=1)
        trainer = bf16()
        used: dict[str, torch.dtype] = {}

        def look(prefix: str, used: dict[str, torch.dtype], module: nn.Module, _: object) -> None:
            own = module.named_parameters(prefix, recurse=False)
            used.update({key: weight.dtype for key, weight in own})

        for prefix, module in trainer.model.named_modules():
            module.register_forward_pre_hook(partial(look, prefix, used))
        curve = losses(trainer, range(4))
        assert "blocks.1.mlp.W_u.weight" in used
        for key, dtype in used.items():
            matrix = key.startswith("blocks.") and key.endswith(".weight")
            assert dtype == (torch.bfloat16 if matrix else torch.float32), key
        with mock.patch.object(parallelize, "gathered_dtype", return_value=None):
            plain = bf16()
        assert torch.equal(curve, losses(plain, range(4))), name
        for weight, other in zip(weights(trainer), weights(plain), strict=True):
            assert weight.dtype == torch.float32
            assert torch.equal(weight, other), name


class Sums(TorchDispatchMode):
    """Counts sums over processes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace == "c10d" and "reduce" in func.__name__
        return func(*args, **(kwargs or {}))


def reductions(trainer: Trainer) -> int:
    """How often a step sums over the processes."""
    with Sums() as sums:
        update(trainer, 0)
    return sums.count


def reduced_once_a_batch(rank: int) -> None:
    """Accumulating sends no more gradients than a batch at once, unless FSDP2 is told to."""
    for layout in (DDP, FSDP2):
        once = reductions(trainer_with("gpt", layout, rank))
        assert 0 < once == reductions(trainer_with("gpt", layout, rank, micro_batch=1))
    assert reductions(by_part(FSDP2, rank)) > once


def by_part(layout: Degrees, rank: int) -> Trainer:
    """A run that is to sum gradients after each of its micro-batches, of a row."""
    trainer = trainer_with("gpt", layout, rank, micro_batch=1)
    parts = dataclasses.replace(trainer.config.parallel, reduce="part")
    config = dataclasses.replace(trainer.config, parallel=parts)
    return dataclasses.replace(trainer, config=config)


def reduced_alike(rank: int) -> None:
    """The sum of a batch's gradients does not depend on when they are summed over processes."""
    for layout in (DDP, FSDP2):
        once = losses(trainer_with("gpt", layout, rank, micro_batch=1), range(2))
        assert torch.allclose(losses(by_part(layout, rank), range(2)), once, rtol=1e-4), layout


def spike_of_one(rank: int) -> None:
    """A loss that is not a number in one process is left out by both."""
    for layout in (DDP, FSDP2):
        trainer = trainer_with("ngpt", layout, rank, on_spike="skip")
        update(trainer, 0)
        before = weights(trainer)
        broken = dataclasses.replace(
            trainer, loss=lambda *a, j=trainer, **k: j.loss(*a, **k) * odd(rank)
        )
        loss, norm, _ = update(broken, 1)
        assert not loss.isfinite()
        assert not norm.isfinite()
        for weight, other in zip(weights(trainer), before, strict=True):
            assert torch.equal(weight, other)
        assert update(trainer, 2)[0].isfinite()
        assert not torch.equal(weights(trainer)[0], before[0])


def odd(rank: int) -> float:
    """Not a number in the second process."""
    return float("nan") if rank == 1 else 1.0


def blocks_in_one_graph(rank: int) -> None:
    """Compiled blocks, whole or an error, compute the same on shards; bf16 and recomputed too."""
    traced = partial(torch.compile, backend="eager")
    for layout, more in (
        (FSDP2, {"recompute": "selective", "precision": "bf16"}),
        (TP, {"recompute": "full"}),
    ):
        plain = losses(trainer_with("ngpt", layout, rank, **more), range(2))
        with mock.patch.object(torch, "compile", traced):
            compiled = losses(trainer_with("ngpt", layout, rank, compile=True, **more), range(2))
        assert torch.allclose(plain, compiled, atol=1e-5), (layout, more)


def run_all(rank: int, folder: Path) -> None:
    """Everything that needs two processes."""
    gathered_in_bf16(rank)
    reduced_once_a_batch(rank)
    reduced_alike(rank)
    spike_of_one(rank)
    blocks_in_one_graph(rank)


@pytest.mark.timeout(300)
def test_steps_of_two_processes(tmp_path):
    launch(run_all, 2, tmp_path)
