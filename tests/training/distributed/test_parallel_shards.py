"""Shards: projected without a word between processes, saved on one layout, loaded on another."""

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel_cases import ARCHITECTURES, VARIANTS, losses, resumed, save, trainer_of
from parallel_launch import launch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from unitsphere.models.constraint import Constraint, constraints
from unitsphere.ops.dtensor import whole as whole_of
from unitsphere.training.distributed.layout import Degrees

CASES = ARCHITECTURES | VARIANTS
NAMES = ["ngpt", "normformer", "dyt", "ngpt-tied-scalar"]
FSDP2, TP, DDP = Degrees(dp_shard=2), Degrees(tp=2), Degrees(dp_replicate=2)
STAGES = [range(3), range(3, 6), range(6, 9)]


def three_layouts(name: str, rank: int, root: Path) -> list[list[float]]:
    """The losses of a run that changes its layout at each stage."""
    trainer = trainer_of(CASES[name], FSDP2, rank)
    curve = losses(trainer, STAGES[0])
    first = save(root, trainer, 3)
    # The same layout continues bit for bit.
    twice = [
        losses(again, STAGES[1]) for again in (trainer, resumed(CASES[name], first, FSDP2, rank))
    ]
    assert torch.equal(*twice)
    if rank == 0:
        alone = resumed(CASES[name], first)
        curve = torch.cat([curve, losses(alone, STAGES[1])])
        save(root, alone, 6)
    dist.barrier()
    second = root / "step-00000006"
    rest = losses(resumed(CASES[name], second, TP, rank), STAGES[2])
    copies = losses(resumed(CASES[name], second, DDP, rank), STAGES[2])
    assert torch.allclose(rest, copies, atol=1e-6)
    return torch.cat([curve, rest]).tolist()


def sharded_projections(rank: int) -> None:
    """Sphere and ball along both axes of a matrix cut along both, unevenly too."""
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    whole[2], whole[:, 3] = 0, 0
    for cut, axis, kind in itertools.product((0, 1), (0, 1), ("sphere", "ball")):
        constraint = Constraint("W", axis, kind, radius=2.0)
        weight = distribute_tensor(whole.clone(), mesh, [Shard(cut)])
        with CommDebugMode() as spoken:
            constraint.project_(weight)
        expected = constraint.project_(whole.clone())
        assert (weight.full_tensor() - expected).abs().max() <= 1e-6, (cut, axis, kind)
        assert (spoken.get_total_counts() == 0) == (cut != axis)


def project_in_silence(rank: int) -> None:
    """FSDP2 cuts between a model's constrained vectors: each is whole in a process."""
    for name in ("ngpt", "angpt"):
        trainer = trainer_of(CASES[name], FSDP2, rank)
        losses(trainer, range(2))
        for constraint in constraints(trainer.model):
            weight = trainer.model.get_parameter(constraint.parameter)
            before = whole_of(weight)
            with torch.no_grad():
                weight.mul_(3)
            with CommDebugMode() as spoken:
                constraint.project_(weight)
            assert spoken.get_total_counts() == 0, constraint.parameter
            lengths = whole_of(weight).norm(dim=constraint.dim)
            if constraint.kind == "sphere":
                assert (lengths - 1).abs().max() <= 1e-6, constraint.parameter
                assert torch.allclose(whole_of(weight), before, atol=1e-6)
            assert lengths.max() <= 1 + 1e-6


def run_all(rank: int, folder: Path) -> None:
    """Everything that needs two processes."""
    sharded_projections(rank)
    project_in_silence(rank)
    found = {name: three_layouts(name, rank, folder / name) for name in NAMES}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


@pytest.mark.timeout(300)
def test_a_run_continues_on_another_layout(tmp_path):
    launch(run_all, 2, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    for name in NAMES:
        expected = losses(trainer_of(CASES[name]), range(9))
        curve = torch.tensor(found[name])
        assert torch.allclose(curve[:, 0], expected[:, 0], atol=1e-6, rtol=0), name
