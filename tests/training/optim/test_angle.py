"""The cap on the angle of an update, and logit-gradient preconditioning, by their formulas."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from run_folders import check_resumed

from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, roles
from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.projection import cap_angle_
from unitsphere.training.resolve import resolve

SMALL = {"vocab_size": 24, "d_model": 16, "n_layers": 1, "n_heads": 2}


def degrees(a, b):
    """The angle between two vectors, exact for small ones too."""
    a, b = a / a.norm(), b / b.norm()
    return math.degrees(2 * math.asin(min(float((a - b).norm() / 2), 1.0)))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_vector_that_turned_too_far_is_turned_back(dim):
    """By rotation in the plane of both: Rodrigues' formula for each vector."""
    torch.manual_seed(0)
    old = torch.randn(6, 5, dtype=torch.float64)
    moved = old + 0.4 * torch.randn_like(old)
    moved.select(1 - dim, 0).copy_(old.select(1 - dim, 0))  # it did not move
    old.select(1 - dim, 1).zero_()  # and this one has no direction to turn from
    theta = math.radians(12)
    found = cap_angle_(moved.clone(), old, dim, theta)
    capped = 0
    vectors = (matrix.unbind(1 - dim) for matrix in (old, moved, found))
    for w, new, after in zip(*vectors, strict=True):
        if w.norm() == 0 or degrees(w, new) <= 12:
            assert torch.equal(after, new)
            continue
        capped += 1
        assert degrees(w, after) == pytest.approx(12, abs=1e-6)
        basis = torch.linalg.qr(torch.stack([w, new], 1)).Q * torch.tensor([1.0, 1.0])
        basis = basis * torch.sign(basis.T @ torch.stack([w, new], 1)).diagonal()
        turned = basis @ torch.tensor([math.cos(theta), math.sin(theta)], dtype=old.dtype)
        torch.testing.assert_close(after, turned * new.norm(), rtol=0, atol=1e-10)
    assert capped >= 2


def test_a_step_turns_no_vector_beyond_its_cap_but_those_of_embeddings():
    model = build("ngpt", tied=False, **SMALL).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    constrain(model, optimizer, config=ConstraintConfig(angle_cap=0.5))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    x = torch.arange(24)[None]
    model.loss(x, x.roll(-1, 1)).backward()
    optimizer.step()
    role, largest = roles(model), math.degrees(0.5 * 0.05 * 4)
    for c in constraints(model):
        weight = model.get_parameter(c.parameter).detach()
        pairs = zip(before[c.parameter].unbind(1 - c.dim), weight.unbind(1 - c.dim), strict=True)
        turned = max(degrees(a, b) for a, b in pairs)
        if role[c.parameter] == "embedding":
            assert turned > 1.5 * largest
        else:
            assert turned == pytest.approx(largest, abs=1e-4)
        assert (weight.norm(dim=c.dim) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("architecture", ["ngpt", "angpt"])
def test_logit_gradients_are_preconditioned(architecture, power):
    model = build(architecture, **SMALL).double()
    with torch.no_grad():
        model.s_z.stored.mul_(torch.linspace(0.5, 3.0, 24))
    x = torch.arange(24).reshape(2, 12)
    model.loss(x, x.roll(-1, 1), logit_power=power).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    weight, s, _ = model.head()
    u = model.features(x) @ weight.T
    z = (s * u).detach().requires_grad_()
    F.cross_entropy(z.flatten(0, 1), x.roll(-1, 1).flatten()).backward()
    of_u = (s / s.mean()).detach() ** power * z.grad
    torch.autograd.backward([u, s], [of_u, (u.detach() * z.grad).sum((0, 1))])
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_a_run_with_both_resumes_bit_for_bit(tiny, tmp_path):
    config = tiny("ngpt", sample_every=5)
    optim = dataclasses.replace(
        config.optim, logit_power=0.5, constraint=ConstraintConfig(angle_cap=1.0)
    )
    config = dataclasses.replace(config, optim=optim)
    check_resumed(config, tmp_path)


def test_what_does_not_fit_is_refused(tiny):
    with pytest.raises(UserError, match="angle_cap needs vectors on spheres"):
        ConstraintConfig("hyperball", angle_cap=1.0)
    with pytest.raises(UserError, match="angle_cap must be"):
        ConstraintConfig(angle_cap=-1.0)
    with pytest.raises(UserError, match=r"optim\.logit_power must be"):
        OptimConfig(logit_power=-0.5)
    model = build("gpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(UserError, match="declares no sphere for angle_cap"):
        constrain(model, optimizer, config=ConstraintConfig(angle_cap=1.0))
    config = dataclasses.replace(tiny("gpt"), optim=OptimConfig(logit_power=1.0))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=24))
    with pytest.raises(UserError, match="a learned scale of each logit"):
        resolve(config, None)
