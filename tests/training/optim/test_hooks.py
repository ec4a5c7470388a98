"""Work around an optimizer's step is told whether the gradients are there already."""

import pytest
import torch
from torch import nn

from unitsphere import optim
from unitsphere.kernels import using_kernels
from unitsphere.models.constraint import Constraint
from unitsphere.training.optim import projection
from unitsphere.training.optim.projection import Projection
from unitsphere.training.optim.state import StepHook, attach


class Told(StepHook):
    def __init__(self):
        self.ready = []

    def before(self, optimizer, ready):
        self.ready.append(ready)


def started():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False)
    layer(torch.ones(2, 4)).sum().backward()
    return layer, torch.optim.Adam(layer.parameters(), fused=True)


def test_gradients_are_there_unless_a_closure_makes_them():
    _, optimizer = started()
    told = Told()
    attach(optimizer, told)
    optimizer.step()
    optimizer.step(None)
    optimizer.step(closure=None)
    optimizer.step(lambda: 0.0)
    optimizer.step(closure=lambda: 0.0)
    assert told.ready == [True, True, True, False, False]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_projection_steps_in_the_optimizer_s_place_where_it_can(mode, monkeypatch):
    layer, optimizer = started()
    stepped = []

    def fused_step(*arguments):
        stepped.append(served(*arguments))
        return stepped[-1].copy()

    served = projection.fused_step
    monkeypatch.setattr(projection, "fused_step", fused_step)
    attach(optimizer, Projection([(layer.weight, Constraint("weight", 1))]))
    gradient = layer.weight.grad
    with using_kernels(mode):
        optimizer.step()
    assert [list(found) for found in stepped] == [[layer.weight] if mode == "auto" else []]
    assert layer.weight.grad is gradient
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(3))


class Still(torch.optim.Adam):
    """A user's own Adam, which moves nothing."""

    def step(self, closure=None):
        return None


@pytest.mark.parametrize("bound", [Constraint("weight", 1), Constraint("weight", 1, "ball", 0.5)])
@pytest.mark.parametrize("kind", [optim.CautiousAdamW, Still])
def test_an_adam_with_its_own_step_keeps_it(kind, bound):
    weights = {}
    for mode in ("auto", "off"):
        layer, _ = started()
        bound.project_(layer.weight)
        optimizer = kind(layer.parameters(), lr=0.1, weight_decay=0.5, fused=True)
        attach(optimizer, Projection([(layer.weight, bound)]))
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            layer.weight.grad = torch.randn(3, 4, generator=generator)
            with using_kernels(mode):
                optimizer.step()
        weights[mode] = layer.weight.detach()
    assert torch.equal(weights["auto"], weights["off"])


def clip(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 1e-3)


def see(optimizer, args, kwargs):
    optimizer.seen = [
        p.grad is not None for group in optimizer.param_groups for p in group["params"]
    ]


def last_average(optimizer):
    return next(iter(optimizer.state.values()))["average"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["norm", "average", "clip", "see"])
def test_others_work_around_a_step_is_done_whether_it_is_fused_or_not(what, when):
    """What is attached before a projection or after it finds gradients, and may change them."""
    found = []
    for fused in (False, True):
        layer, _ = started()
        kind = optim.AdamH if what == "norm" else torch.optim.Adam
        optimizer = kind(layer.parameters(), lr=0.3, eps=1e-3, fused=fused)

        def other(optimizer=optimizer):
            if what == "average":
                optim.average(optimizer, decay=0.5)
            elif what == "clip":
                optimizer.register_step_pre_hook(clip)
            elif what == "see":
                optimizer.register_step_post_hook(see)

        if when == "before":
            other()
        attach(optimizer, Projection([(layer.weight, Constraint("weight", 1))]))
        if when == "after":
            other()
        for seed in range(2):
            layer.weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        found.append([layer.weight.detach()])
        if what == "average":
            found[-1].append(last_average(optimizer))
        if what == "see":
            assert optimizer.seen == [True]
    torch.testing.assert_close(*found)
