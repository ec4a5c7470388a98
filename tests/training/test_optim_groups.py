"""Every number of the optimizer's config reaches the groups that it is for."""

import pytest
import torch

from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig, build_optimizer

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
    assert [g["weight_decay"] for g in found] == [0.07, 0.0]
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
    assert kinds == {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
