"""The loss of a head that processes share, with one process: its means."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from unitsphere.ops.loss import IGNORE, linear_cross_entropy


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("ignored", [0, 2, 5])
def test_a_mean_is_the_plain_path_s_and_over_no_target_its_gradient_is_0(mesh, ignored):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(11, 8, generator=generator)
    vectors = torch.randn(5, 8, generator=generator)
    targets = torch.randint(0, 11, (5,), generator=generator)
    targets[:ignored] = IGNORE
    found = []
    for weight in (distribute_tensor(start, mesh, [Shard(0)]), start.clone()):
        h, W = vectors.clone().requires_grad_(), nn.Parameter(weight)
        loss = linear_cross_entropy(h, W, targets, path="plain", label_smoothing=0.1)
        loss.backward()
        assert loss.isnan() == (ignored == 5)
        grad = W.grad.full_tensor() if hasattr(W.grad, "full_tensor") else W.grad
        found.append([loss.detach(), h.grad, grad])
    torch.testing.assert_close(*found, rtol=0, atol=1e-6, equal_nan=True)
    assert all(grad.isfinite().all() for grad in found[0][1:])
