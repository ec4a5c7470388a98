"""Work around an optimizer's step is told whether the gradients are there already."""

import pytest
import torch
from torch import nn

import unitsphere
from unitsphere import nn as unit
from unitsphere import optim
from unitsphere.kernels import using_kernels
from unitsphere.models.constraint import Constraint
from unitsphere.training.optim import projection
from unitsphere.training.optim.projection import Projection
from unitsphere.training.optim.state import COUNT, StepHook, attach, state_spec


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


@pytest.mark.parametrize("closure_by_name", [False, True])
def test_what_changes_gradients_waits_for_those_of_a_closure(closure_by_name):
    """Lightning always gives a closure."""

    class Doubles(StepHook):
        of_gradients = True

        def before(self, optimizer, ready):
            assert ready
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.grad.mul_(2)

    def after_a_step(hooked, with_closure):
        torch.manual_seed(0)
        layer = nn.Linear(4, 3, bias=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        if hooked:
            attach(optimizer, Doubles())

        def closure():
            optimizer.zero_grad()
            loss = layer(torch.ones(2, 4)).square().sum() * (1 if hooked else 2)
            loss.backward()
            return loss

        if not with_closure:
            closure()
            optimizer.step()
        elif closure_by_name:
            assert optimizer.step(closure=closure) > 0
        else:
            assert optimizer.step(closure) > 0
        return layer.weight

    wanted = after_a_step(hooked=False, with_closure=False)
    assert torch.equal(after_a_step(hooked=True, with_closure=False), wanted)
    assert torch.equal(after_a_step(hooked=True, with_closure=True), wanted)


def test_two_that_keep_the_same_name_are_refused():
    class Keeps(StepHook):
        def state_spec(self, parameter):
            return {"mine": COUNT}

    layer, _ = started()
    optimizer = optim.AdamW(layer.parameters())
    attach(optimizer, Keeps())
    attach(optimizer, Keeps())
    with pytest.raises(RuntimeError, match="Keeps keeps mine, which is kept already"):
        state_spec(optimizer, layer.weight)


def in_turn(optimizer, state_dict):
    """A hook of the user's, as torch.optim's page shows: what it loads is in another order."""
    (group,) = state_dict["param_groups"]
    return {**state_dict, "param_groups": [group | {"params": [1, 0]}]}


@pytest.mark.parametrize("constrained", [False, True])
def test_a_hook_of_the_user_s_may_load_what_fewer_parameters_had(constrained):
    def made(count):
        model = nn.Sequential(*(unit.UnitLinear(4, 4) for _ in range(count)))
        optimizer = (torch.optim.Adam if constrained else optim.AdamW)(model.parameters())
        if constrained:
            unitsphere.constrain(model, optimizer)
        return model, optimizer

    model, small = made(1)
    model(torch.ones(2, 4)).sum().backward()
    small.step()
    _, large = made(2)
    large.register_load_state_dict_pre_hook(in_turn)
    large.load_state_dict(small.state_dict())
    assert [len(large.state.get(p, {})) for p in large.param_groups[0]["params"]] == [0, 3]


def test_averages_of_bf16_weights_that_such_a_hook_has_exchanged_are_not_mixed_up():
    def made(values):
        weights = [nn.Parameter(torch.full((3,), v, dtype=torch.bfloat16)) for v in values]
        optimizer = torch.optim.SGD(weights, lr=1e-3)
        optim.average(optimizer, 0.9)
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        return weights, optimizer

    _, first = made([1.0, 2.0])
    first.step()
    others, second = made([2.0, 1.0])
    second.register_load_state_dict_pre_hook(in_turn)
    second.load_state_dict(first.state_dict())
    averages = [second.state[weight]["average"].tolist() for weight in others]
    assert averages == [[2.0] * 3, [1.0] * 3]
