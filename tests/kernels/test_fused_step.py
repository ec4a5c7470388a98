"""A step in Adam's place: the same weights, the same state, and what it leaves to Adam."""

import copy
import re

import pytest
import torch
from kernel_cases import DEVICE
from torch import nn

from unitsphere import optim
from unitsphere.errors import UserError
from unitsphere.kernels import fused_step, using_kernels
from unitsphere.models.constraint import Constraint

BOUNDS = [Constraint("0.weight", 1), Constraint("1.weight", 0, "ball", 2.0)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5)).to(DEVICE)


def held(model):
    return [(model.get_parameter(c.parameter), c) for c in BOUNDS]


def adam(model, kind=torch.optim.AdamW, **more):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    free = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": free}]
    return kind(groups, lr=0.05, betas=(0.9, 0.95), weight_decay=0.0, fused=True, **more)


def set_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)


def plain_step(model, optimizer):
    optimizer.step()
    for weight, constraint in held(model):
        constraint.project_(weight.data)


def kernel_step(model, optimizer, shadows=None):
    """As a hook around `optimizer.step` would do it."""
    stepped = fused_step(optimizer, held(model), shadows)
    optimizer.step()
    for weight, gradient in stepped.items():
        weight.grad = gradient
    return stepped


def assert_same(found, expected):
    for f, e in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(f, e, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_steps_are_those_of_adam_and_projection(kind):
    ours, theirs = model(), model()
    optimizers = adam(ours, kind), adam(theirs, kind)
    for seed in range(3):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        stepped = kernel_step(ours, optimizers[0])
        plain_step(theirs, optimizers[1])
        assert list(stepped) == [weight for weight, _ in held(ours)]
        assert all(p.grad is not None for p in ours.parameters())
    assert_same(ours, theirs)


def test_it_continues_torch_s_run_and_torch_continues_its():
    ours, theirs = model(), model()
    optimizers = adam(ours), adam(theirs)
    for seed, step in enumerate([plain_step, kernel_step, plain_step]):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        step(ours, optimizers[0])
        plain_step(theirs, optimizers[1])
        saved = optimizers[0].state_dict()
        expected = optimizers[1].state_dict()
        assert saved["param_groups"] == expected["param_groups"]
        torch.testing.assert_close(saved["state"], expected["state"], rtol=2e-6, atol=1e-7)
        fresh = adam(ours)
        fresh.load_state_dict(copy.deepcopy(saved))
        optimizers = fresh, optimizers[1]
    assert_same(ours, theirs)


def test_a_narrow_copy_follows():
    net = model()
    weight = net.get_parameter("1.weight")
    shadow = torch.zeros_like(weight, dtype=torch.bfloat16)
    set_gradients(net, 0)
    kernel_step(net, adam(net), {weight: shadow})
    cut = 0 if DEVICE == "cuda" else 2**-7  # the interpreter does not round
    torch.testing.assert_close(shadow, weight.detach().bfloat16(), rtol=cut, atol=0)


def test_a_weight_without_gradient_stays():
    net = model()
    before = net.get_parameter("0.weight").detach().clone()
    set_gradients(net, 0)
    net.get_parameter("0.weight").grad = None
    assert list(kernel_step(net, adam(net))) == [net.get_parameter("1.weight")]
    assert torch.equal(net.get_parameter("0.weight"), before)


class OwnStep(torch.optim.Adam):
    """A user's Adam with another step."""

    def step(self, closure=None):
        return None


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda net: adam(net, OwnStep), "OwnStep does not step as Adam does"),
        (lambda net: adam(net, amsgrad=True), "Adam's amsgrad is not in the kernel"),
        (lambda net: adam(net, maximize=True), "Adam's maximize is not in the kernel"),
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1), "SGD is not Adam"),
    ],
)
def test_what_it_cannot_step_is_left_to_the_optimizer(optimizer, reason):
    net = model()
    opt = optimizer(net)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(UserError, match=re.escape(reason)):
        fused_step(opt, held(net))
    with using_kernels("auto"):
        assert fused_step(opt, held(net)) == {}
    assert all(p.grad is not None for p in net.parameters())


def test_float64_is_not_for_the_kernel():
    net = model().double()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(UserError, match="float64 is not for kernels"):
        fused_step(adam(net), held(net))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, optim.Adam, optim.AdamW])
def test_on_a_cpu_matrix_after_matrix_is_bitwise_all_at_once(kind, dtype):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5)).to(dtype)
    theirs = copy.deepcopy(ours)
    optimizers = adam(ours, kind), adam(theirs, kind)
    for seed in range(3):
        for net in (ours, theirs):
            generator = torch.Generator().manual_seed(seed)
            for p in net.parameters():
                p.grad = torch.randn(p.shape, generator=generator, dtype=dtype)
        with using_kernels("auto"):
            assert list(kernel_step(ours, optimizers[0])) == [weight for weight, _ in held(ours)]
        plain_step(theirs, optimizers[1])
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(found, expected)
    found, expected = (optimizer.state_dict()["state"] for optimizer in optimizers)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_scaled_gradient_is_left_to_the_optimizer():
    net = model()
    opt = adam(net)
    set_gradients(net, 0)
    opt.grad_scale = torch.tensor(2.0)
    with pytest.raises(UserError, match="GradScaler"):
        fused_step(opt, held(net))


def test_off_steps_nothing():
    net = model()
    set_gradients(net, 0)
    with using_kernels("off"):
        assert fused_step(adam(net), held(net)) == {}
