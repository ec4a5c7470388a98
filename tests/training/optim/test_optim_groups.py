"""Every number of the optimizer's config reaches the groups that it is for."""

import pytest
import torch

import unitsphere
from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig, RatesConfig, build_optimizer
from unitsphere.training.optim.adam import Adam, AdamW

NUMBERS = {
    "lr": 3e-3,
    "beta1": 0.7,
    "beta2": 0.83,
    "eps": 1e-5,
    "weight_decay": 0.07,
    "momentum": 0.6,
    "nesterov": False,
    "ns_steps": 3,
    "adjust_lr": "original",
}


def groups(name, **numbers):
    model = build("normformer", vocab_size=24, d_model=16, n_layers=1, n_heads=2)
    return build_optimizer(model, OptimConfig(name=name, **numbers)).param_groups


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_adam_s_numbers(name):
    own = {"adam_lr": 5e-4} if name == "muon" else {}
    found = [g for g in groups(name, **NUMBERS, **own) if "betas" in g]
    assert sorted(g["weight_decay"] for g in found) == [0.0, 0.07]
    for group in found:
        assert group["lr"] == group["initial_lr"] == own.get("adam_lr", 3e-3)
        assert (group["betas"], group["eps"]) == ((0.7, 0.83), 1e-5)


def test_muon_s_numbers():
    (group,) = (g for g in groups("muon", **NUMBERS) if "betas" not in g)
    wanted = {key: NUMBERS[key] for key in ("lr", "weight_decay", "momentum", "nesterov")}
    wanted |= {"ns_steps": 3, "adjust_lr_fn": "original", "initial_lr": 3e-3}
    assert {key: group[key] for key in wanted} == wanted


def test_adam_is_adamw_only_by_name():
    model = build("gpt", vocab_size=24, d_model=16, n_layers=1, n_heads=2)
    kinds = {n: type(build_optimizer(model, OptimConfig(name=n))) for n in ("adam", "adamw")}
    assert kinds == {"adam": Adam, "adamw": AdamW}
    assert issubclass(Adam, torch.optim.Adam)
    assert issubclass(AdamW, torch.optim.AdamW)


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_rates_by_kind_are_multiples_of_what_the_rest_has(name):
    """Each parameter's peak rate, found by its own movement: Adam's first step is lr·sign(g)."""
    rates = RatesConfig(embedding=2.0, head=0.5, scale=4.0)
    own = {"adam_lr": 5e-4} if name == "muon" else {}
    config = OptimConfig(name=name, lr=3e-3, rates=rates, eps=0.0, **own)
    model = build("ngpt", vocab_size=24, d_model=16, n_layers=1, n_heads=2)
    optimizer = build_optimizer(model, config)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    base = own.get("adam_lr", 3e-3)
    multiple = {"embedding": 2.0, "head": 0.5, "scale": 4.0, "matrix": 1.0}
    for key, role in roles(model).items():
        if name == "muon" and role == "matrix":
            continue
        moved = (model.get_parameter(key) - before[key]).abs()
        expected = torch.full_like(moved, base * multiple[role])
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_by_default_all_kinds_have_one_rate():
    assert {g["lr"] for g in groups("adamw", lr=2e-3, weight_decay=0.1)} == {2e-3}


def test_a_rate_of_zero_or_less_is_refused():
    with pytest.raises(UserError, match=r"optim\.rates\.head must be a number above 0"):
        RatesConfig(head=0.0)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("Muon", {"turns": 0}),
        ("Muon", {"coefficients": "cubic"}),
        ("Muon", {"coefficients": "minimax", "ns_steps": 9}),
        ("Muon", {"adjust_lr_fn": "none"}),
        ("NorMuon", {"beta2": 1.0}),
        ("Soap", {"every": 0}),
        ("Soap", {"betas": (0.9, 1.0)}),
        ("SoapMuon", {"outward": 2.0}),
        ("SoapMuon", {"adjust_lr": "none"}),
        ("GatedAdamW", {"power": 3.0}),
        ("GatedAdamW", {"betas": (1.0, 0.9)}),
    ],
)
def test_a_group_s_own_numbers_are_checked_when_it_is_added(name, numbers):
    """At the first step, or never, the error would be far from the number that caused it."""
    kind = getattr(unitsphere.optim, name)
    first, second = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    with pytest.raises(UserError):
        kind([{"params": [first], **numbers}])
    optimizer = kind([first])
    with pytest.raises(UserError):
        optimizer.add_param_group({"params": [second], **numbers})
    assert [group["params"] for group in optimizer.param_groups] == [[first]]


@pytest.mark.parametrize("name", ["Muon", "Soap", "GatedAdamW", "CautiousAdamW"])
def test_complex_parameters_are_refused(name):
    kind = getattr(unitsphere.optim, name)
    with pytest.raises(UserError, match="real parameters only"):
        kind([torch.nn.Parameter(torch.ones(2, 3, dtype=torch.complex64))])
