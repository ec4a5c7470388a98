"""What one layout saved, another goes on with: 2 x FSDP2, then one process, then 2 x TP."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel_cases import ARCHITECTURES, VARIANTS, job_of, losses, resumed, save
from parallel_launch import launch

from unitsphere.training.parallel.layout import Degrees

CASES = ARCHITECTURES | VARIANTS
NAMES = ["ngpt", "angpt", "normformer", "dyt", "ngpt-tied-scalar"]
FSDP2, TP, DDP = Degrees(dp_shard=2), Degrees(tp=2), Degrees(dp_replicate=2)
STAGES = [range(4), range(4, 8), range(8, 12)]


def three_layouts(name: str, rank: int, root: Path) -> list[list[float]]:
    """The losses of a run that changes its layout at each stage."""
    job = job_of(CASES[name], FSDP2, rank)
    curve = losses(job, STAGES[0])
    first = save(root, job, 4)
    # The same layout goes on bit by bit.
    twice = [losses(again, STAGES[1]) for again in (job, resumed(CASES[name], first, FSDP2, rank))]
    assert torch.equal(*twice)
    if rank == 0:
        alone = resumed(CASES[name], first)
        curve = torch.cat([curve, losses(alone, STAGES[1])])
        save(root, alone, 8)
    dist.barrier()
    second = root / "step-00000008"
    rest = losses(resumed(CASES[name], second, TP, rank), STAGES[2])
    copies = losses(resumed(CASES[name], second, DDP, rank), STAGES[2])
    assert torch.allclose(rest, copies, atol=1e-6)
    return torch.cat([curve, rest]).tolist()


def run_all(rank: int, folder: Path) -> None:
    """Every case through three layouts."""
    found = {name: three_layouts(name, rank, folder / name) for name in NAMES}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


@pytest.mark.timeout(300)
def test_a_run_goes_on_on_another_layout(tmp_path):
    launch(run_all, 2, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    for name in NAMES:
        expected = losses(job_of(CASES[name]), range(12))
        curve = torch.tensor(found[name])
        assert torch.allclose(curve[:, 0], expected[:, 0], atol=1e-6, rtol=0), name
