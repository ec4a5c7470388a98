"""FSDP2 over one process: its hooks, its views and its DTensors, without a second machine."""

import pytest
import torch
import torch.distributed as dist
from kernel_cases import DEVICE, Recorder
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from unitsphere.errors import UserError
from unitsphere.kernels import fused_step, lerp_norm
from unitsphere.models.constraint import Constraint


class Residual(nn.Module):
    """h moved by a linear layer, as in nGPT."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.W = nn.Linear(6, 6, bias=False)
        self.alpha = nn.Parameter(torch.full((6,), 0.3))

    def forward(self, h: Tensor) -> Tensor:
        return lerp_norm(h, self.W(h), self.alpha)


@pytest.fixture(scope="module")
def mesh():
    store = dist.HashStore()
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    yield init_device_mesh(DEVICE, (1,))
    dist.destroy_process_group()


def step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    generator = torch.Generator().manual_seed(1)
    model(torch.randn(4, 6, generator=generator).to(DEVICE)).square()[:, 0].sum().backward()
    return fused_step(optimizer, [(model.W.weight, Constraint("W.weight", 1))])


def test_a_sharded_model_takes_the_same_step(mesh):
    plain, sharded = Residual().to(DEVICE), Residual().to(DEVICE)
    fully_shard(sharded, mesh=mesh)
    with Recorder() as recorder:
        assert len(step(sharded)) == 1
    assert set(recorder.names()) == {"lerp_norm", "lerp_norm_backward", "adam_project_"}
    step(plain)
    assert torch.equal(sharded.W.weight.full_tensor(), plain.W.weight)
    assert torch.equal(sharded.alpha.grad.full_tensor(), plain.alpha.grad)


def test_vectors_spread_over_shards_are_refused(mesh):
    sharded = Residual().to(DEVICE)
    fully_shard(sharded, mesh=mesh)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.1, fused=True)
    sharded(torch.ones(4, 6, device=DEVICE))[:, 0].sum().backward()
    with pytest.raises(UserError, match="a vector is spread over several shards"):
        fused_step(optimizer, [(sharded.W.weight, Constraint("W.weight", 0))])
