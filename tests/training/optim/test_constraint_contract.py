"""Every architecture × optimizer × constraint: what is promised holds on the stored tensors."""

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.models.constraint import Constraint, constraints, overridden, roles
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import REMEMBERED, ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPRConfig

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}
OPTIMIZERS = ["adam", "adamw", "muon"]
KINDS = ["declared", "none", "sphere", "ball", *REMEMBERED]
STEPS = 4


def check_vectors(model, bounds: list[Constraint]):
    """Each length is 1 (sphere) or at most 1 (ball), along the axis of d_model where declared."""
    for c in bounds:
        length = model.get_parameter(c.parameter).detach().norm(dim=c.dim)
        if c.kind == "sphere":
            assert (length - 1).abs().max() < 1e-6, c
        else:
            assert length.max() < 1 + 1e-6, c


def check(model, optimizer, kind, start):
    """What `kind` promises; `start` are the weights when it was set."""
    if kind == "declared":
        return check_vectors(model, constraints(model))
    if kind in ("sphere", "ball"):
        return check_vectors(model, overridden(model, kind))
    for name, role in roles(model).items():
        weight, state = model.get_parameter(name), optimizer.state[model.get_parameter(name)]
        held = role in REMEMBERED.get(kind, ())
        assert ("radius" in state) == (held and kind != "cpr"), name
        assert ("lambda" in state) == (held and kind == "cpr"), name
        if held and kind != "cpr":
            torch.testing.assert_close(weight.detach().norm(), start[name].norm())
        elif held:
            assert state["lambda"] >= 0, name
            torch.testing.assert_close(state["kappa"], 0.9 * start[name].norm() ** 2)
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_constraint_holds_on_the_stored_tensors(name, optimizer_name, kind):
    model = build(name, tied=optimizer_name == "adamw", **SMALL)
    cpr = CPRConfig("Kappa-kI0", value=0.9)
    config = OptimConfig(
        name=optimizer_name,
        lr=0.05,
        weight_decay=0.1 if optimizer_name != "adam" and kind not in ("hyperball", "cpr") else 0.0,
        constraint=ConstraintConfig(kind=kind, cpr=cpr),
    )
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer, config=config.constraint)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    if kind in ("declared", "sphere", "ball"):
        check(model, optimizer, kind, start)
    for seed in range(STEPS):
        x = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(seed))
        loss = model.loss(x, x.roll(-1, 1))
        assert torch.isfinite(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    check(model, optimizer, kind, start)
    for name_, p in model.named_parameters():
        assert torch.isfinite(p).all(), name_
        assert not torch.equal(p, start[name_]), name_


@pytest.mark.parametrize("optimizer_name", ["adam", "muon"])
@pytest.mark.parametrize("kind", ["declared", "sphere", "frobenius", "hyperball"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_riemannian_gradients_keep_the_promise_too(name, kind, optimizer_name):
    model = build(name, **SMALL)
    config = ConstraintConfig(kind=kind, riemannian=True)
    optimizer = build_optimizer(model, OptimConfig(name=optimizer_name, lr=0.05))
    if kind == "declared" and not any(c.kind == "sphere" for c in constraints(model)):
        with pytest.raises(UserError, match="declares no sphere"):
            constrain(model, optimizer, config=config)
        return
    constrain(model, optimizer, config=config)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    x = torch.arange(36).reshape(2, 18)
    for _ in range(2):
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    check(model, optimizer, kind, start)
