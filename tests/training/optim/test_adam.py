"""Cautious AdamW against its formula in fp64; how it is built."""

import pytest
import torch
from torch import nn

from unitsphere import optim
from unitsphere.errors import UserError
from unitsphere.models.registry import build


def test_cautious_decay_is_on_the_entries_that_the_step_makes_smaller():
    torch.manual_seed(0)
    W = nn.Parameter(torch.randn(5, 7, dtype=torch.float64))
    plain, still = nn.Parameter(W.detach().clone()), nn.Parameter(torch.ones(3))
    numbers = {"lr": 0.1, "betas": (0.9, 0.8), "eps": 1e-9}
    groups = [{"params": [W, still], "weight_decay": 0.5}, {"params": [plain], "weight_decay": 0.0}]
    optimizer = optim.CautiousAdamW(groups, **numbers)
    expected, m, v = W.detach().clone(), torch.zeros_like(W), torch.zeros_like(W)
    for t in range(1, 6):
        G = torch.randn_like(expected)
        W.grad, plain.grad = G, G
        optimizer.step()
        m, v = 0.9 * m + 0.1 * G, 0.8 * v + 0.2 * G * G
        step = m / (1 - 0.9**t) / ((v / (1 - 0.8**t)).sqrt() + 1e-9)
        agree = torch.sign(step) == torch.sign(expected)
        assert 0.2 < agree.double().mean() < 0.8
        expected = expected - 0.1 * step - 0.1 * 0.5 * torch.where(agree, expected, 0.0)
        torch.testing.assert_close(W.detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(still, torch.ones(3))  # it has no gradient
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_without_decay_it_is_adamw_bit_for_bit_and_a_closure_is_called_once():
    torch.manual_seed(0)
    start, found = torch.randn(4, 3), []
    for kind in (optim.AdamW, optim.CautiousAdamW):
        W, calls = nn.Parameter(start.clone()), []
        optimizer = kind([W], lr=0.1, weight_decay=0.0)

        def loss(W=W, optimizer=optimizer, calls=calls):
            calls.append(1)
            optimizer.zero_grad()
            value = W.square().sum()
            value.backward()
            return value

        assert optimizer.step(loss).item() == start.square().sum().item()
        assert len(calls) == 1
        found.append(W.detach())
    assert torch.equal(*found)


def test_hooks_run_once_per_step_whatever_was_made_before():
    optim.AdamW([nn.Parameter(torch.ones(2))])  # torch wraps the step of this class from now on
    W, calls = nn.Parameter(torch.ones(2)), []
    optimizer = optim.CautiousAdamW([W])
    optimizer.register_step_pre_hook(lambda *arguments: calls.append("before"))
    optimizer.register_step_post_hook(lambda *arguments: calls.append("after"))
    for _ in range(2):
        W.grad = torch.ones(2)
        optimizer.step()
    assert calls == ["before", "after"] * 2


def test_it_is_built_by_its_key():
    model = build("gpt", vocab_size=24, d_model=16, n_layers=1, n_heads=2)
    kinds = {
        cautious: type(optim.build(model, "adamw", adamw={"cautious": cautious}))
        for cautious in (False, True)
    }
    assert kinds == {False: optim.AdamW, True: optim.CautiousAdamW}
    with pytest.raises(UserError, match=r"optim\.adamw\.cautious is for optim\.name 'adamw', not"):
        optim.build(model, "muon", adamw={"cautious": True})
