"""Numbers by kind of parameter: references in fp64, from the formulas alone."""

import dataclasses
import json

import pytest
import torch
from run_folders import check_resumed

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.config import run_config_type
from unitsphere.training.optim import (
    OptimConfig,
    RatesConfig,
    RoleConfig,
    RolesConfig,
    build_optimizer,
    optim_config_type,
)
from unitsphere.training.optim.constraint import ConstraintConfig
from unitsphere.training.optim.muon import MuonConfig, cool_momentum
from unitsphere.training.optim.roles import kind_of, trained
from unitsphere.training.optim.schedule import ScheduleConfig, steps_alike
from unitsphere.training.optim.soap import SoapConfig
from unitsphere.training.step import set_rates

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}
ROLES = RolesConfig(
    embedding=RoleConfig(beta1=0.8, eps=1e-3, cooldown=0.5),
    head=RoleConfig(beta2=0.99, weight_decay=0.0),
    scale=RoleConfig(weight_decay=0.3),
)
NUMBERS = {  # β₁, β₂, ε, decay, rate, by hand
    "matrix": (0.9, 0.95, 1e-8, 0.1, 1.0),
    "embedding": (0.8, 0.95, 1e-3, 0.1, 2.0),
    "head": (0.9, 0.99, 1e-8, 0.0, 1.0),
    "scale": (0.9, 0.95, 1e-8, 0.3, 1.0),
}


@pytest.mark.parametrize("name", ["adamw", "muon", "normuon", "soap", "soap-muon", "gated-adamw"])
def test_adamw_has_the_numbers_of_each_role(name):
    """Three steps of all that AdamW trains; in the last the rate of the embedding is halved."""
    rates = RatesConfig(embedding=2.0)
    config = optim_config_type()(name=name, lr=1e-2, weight_decay=0.1, rates=rates, roles=ROLES)
    model = build("gpt", **SMALL).double()
    optimizer, role = build_optimizer(model, config), roles(model)
    state = {}
    for t in range(1, 4):
        for seed, (key, W) in enumerate(model.named_parameters()):
            generator = torch.Generator().manual_seed(100 * t + seed)
            G = W.grad = torch.randn(W.shape, generator=generator, dtype=torch.float64)
            kind = kind_of(role[key])
            beta1, beta2, eps, decay, rate = NUMBERS[kind]
            w, m, v = state.get(key, (W.detach().clone(), 0.0, 0.0))
            m, v = beta1 * m + (1 - beta1) * G, beta2 * v + (1 - beta2) * G**2
            lr = 1e-2 * rate * (0.5 if t == 3 and kind == "embedding" else 1.0)
            step = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
            state[key] = (1 - lr * decay) * w - lr * step, m, v
        set_rates(optimizer, 1.0, {0.5: 0.5 if t == 3 else 1.0})
        optimizer.step()
    for key, W in model.named_parameters():
        if name == "adamw" or role[key] != "matrix":
            torch.testing.assert_close(W.detach(), state[key][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["adam", "adamw", "muon", "muonh", "soap", "gated-adamw"])
def test_numbers_that_are_those_of_the_optimizer_change_no_group(name):
    config = optim_config_type()(name=name, beta2=0.9)
    again = dataclasses.replace(config, roles=RolesConfig(RoleConfig(0.9, 0.9, 1e-8, 0.0)))
    plain, same = (build_optimizer(build("gpt", **SMALL), c) for c in (config, again))
    for one, other in zip(plain.param_groups, same.param_groups, strict=True):
        assert len(one.pop("params")) == len(other.pop("params"))
        assert one == other


REFUSED = {
    r"roles\.head\.weight_decay is for optimizers with decoupled": {"name": "adamh"},
    r"takes the place of weight decay: leave out optim\.roles\.head": {"name": "muonh"},
    r"kind 'cpr' takes the place": {"name": "adamw", "constraint": ConstraintConfig("cpr")},
}


@pytest.mark.parametrize("said", REFUSED)
def test_weight_decay_that_has_no_place_is_refused(said):
    with pytest.raises(UserError, match=said):
        OptimConfig(**REFUSED[said], roles=RolesConfig(head=RoleConfig(weight_decay=0.1)))


def test_numbers_that_nothing_reads_are_refused():
    with pytest.raises(UserError, match=r"optim\.roles\.head\.beta2 is for a head trained by Adam"):
        OptimConfig(name="muon", muon_head=True, roles=RolesConfig(head=RoleConfig(beta2=0.9)))
    for number in ({"beta1": 1.0}, {"eps": -1.0}, {"weight_decay": -0.1}, {"cooldown": 0.0}):
        with pytest.raises(UserError, match=rf"optim\.roles\.scale\.{next(iter(number))} must"):
            RolesConfig(scale=RoleConfig(**number))
    kind = run_config_type("gpt")
    with pytest.raises(UserError, match=r"cool-down in optim\.roles is for schedule\.kind wsd"):
        kind(optim=OptimConfig("adamw", roles=ROLES), schedule=ScheduleConfig("linear"))
    tied = dataclasses.replace(kind().model, tied=True)
    with pytest.raises(UserError, match="a head that is not tied"):
        kind(model=tied, optim=OptimConfig(roles=RolesConfig(head=RoleConfig(beta2=0.9))))


def test_keys_of_an_optimizer_that_is_not_used_are_refused():
    kind = optim_config_type()
    with pytest.raises(UserError, match=r"optim\.soap\.every is for optim\.name 'soap', not 'adam"):
        kind(name="adamw", soap=SoapConfig(every=5))
    with pytest.raises(UserError, match=r"optim\.muon\.cautious is for optim\.name 'muon', not"):
        kind(name="normuon", muon=MuonConfig(cautious=True))
    assert kind(name="adamw", soap=SoapConfig(every=10)).soap.every == 10


def test_what_trains_each_role_is_told():
    model = build("gpt", **SMALL)
    config = OptimConfig(name="muon", lr=1e-2, rates=RatesConfig(head=0.5), roles=ROLES)
    rows = {row["role"]: row for row in trained(model, build_optimizer(model, config))}
    assert sum(row["parameters"] for row in rows.values()) == sum(
        p.numel() for p in model.parameters()
    )
    assert {role: (row["optimizer"], row["lr"]) for role, row in rows.items()} == {
        "matrix": ("Muon", 1e-2),
        "embedding": ("AdamW", 1e-2),
        "head": ("AdamW", 5e-3),
        "scale": ("AdamW", 1e-2),
    }
    assert (
        rows["embedding"] | {"betas": (0.8, 0.95), "eps": 1e-3, "cooldown": 0.5}
        == rows["embedding"]
    )
    assert "eps" not in rows["matrix"]
    assert rows["matrix"]["momentum"] == 0.95


def test_the_momentum_cools_down_in_the_last_steps():
    config = optim_config_type()(
        name="muon", muon=MuonConfig(momentum_cooldown=2, momentum_end=0.75)
    )
    optimizer = build_optimizer(build("gpt", **SMALL), config)
    (group,) = (g for g in optimizer.param_groups if "momentum" in g)
    found = []
    for step in range(5):
        cool_momentum(optimizer, 5 - step)
        found.append(group["momentum"])
    assert found == pytest.approx([0.95, 0.95, 0.95, 0.85, 0.75])


def test_a_longer_run_is_alike_until_the_first_cool_down():
    wsd = ScheduleConfig("wsd", decay=0.25)
    assert steps_alike(wsd, 8, wsd, 12) == 7
    assert steps_alike(wsd, 8, wsd, 12, [0.5]) == 5
    assert steps_alike(wsd, 8, wsd, 12, (), 3) == 5
    assert steps_alike(wsd, 8, wsd, 8, [0.5], 3) == 8


def test_resuming_is_bitwise_the_uninterrupted_run(tiny, tmp_path):
    """With both cool-downs; the folder says what trained each role."""
    muon = MuonConfig(momentum_cooldown=4)
    optim = optim_config_type()(name="muon", weight_decay=0.1, roles=ROLES, muon=muon)
    config = tiny("gpt", sample_every=5)
    config = dataclasses.replace(config, optim=optim, schedule=ScheduleConfig("wsd", decay=1.0))
    check_resumed(config, tmp_path)
    (first, *_, last) = map(json.loads, (tmp_path / "whole" / "metrics.jsonl").open())
    assert {key for key in first if "lr" in key} == {"lr"}
    assert {key for key in last if "lr" in key} == {"lr", "lr_embedding"}
    said = read_json(tmp_path / "whole" / "environment.json")["optimizer"]
    assert {row["role"]: row["optimizer"] for row in said}["matrix"] == "Muon"
    assert json.dumps(said)
