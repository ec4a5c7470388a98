"""Weights that go elsewhere: from the meta device, through safetensors, in deep copies."""

import copy

import pytest
import torch
from design_cases import (
    DESIGNS,
    EVERY,
    OBJECTIVES,
    SIZES,
    logits,
    make,
    source_of,
    switches,
    tokens,
)
from safetensors.torch import load_file, save_file

from unitsphere.models.constraint import constraints
from unitsphere.models.registry import build
from unitsphere.training.optim.constraint import constrain

OF_EACH = pytest.mark.parametrize(("design", "objective"), EVERY)
BOUNDED = [d for d in DESIGNS if constraints(make(d))]


def results(model):
    """Logits of a model that drops nothing."""
    return logits(model.eval(), tokens(2, 6), **source_of(model))


@OF_EACH
def test_built_on_meta_then_materialised_is_the_same_model(design, objective):
    """With every switch where there is every module: in an encoder and decoder."""
    for numbers in ({}, *(switches(design).values() if objective == "seq2seq" else ())):
        late = make(design, objective, device="meta", **numbers)
        assert all(p.is_meta for p in late.parameters())
        late.to_empty(device="cpu")
        with torch.no_grad():
            for p in late.parameters():
                p.fill_(float("nan"))
        late.init_weights(torch.Generator().manual_seed(3))
        assert torch.equal(results(late), results(make(design, objective, seed=3, **numbers)))


@OF_EACH
@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_round_trip_by_names_and_bits(design, objective, tied, tmp_path):
    model, other = (make(design, objective, seed=s, tied=tied) for s in (1, 2))
    wanted = results(model)
    assert not torch.equal(results(other), wanted)
    for dtype in (torch.float32, torch.bfloat16):
        path = tmp_path / f"{dtype}.safetensors"
        save_file(model.to(dtype).state_dict(), path)
        stored = load_file(path)
        assert stored.keys() == dict(model.named_parameters()).keys()
        other.to(dtype).load_state_dict(stored)
        for name, p in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], p), name
        if dtype == torch.float32:
            assert torch.equal(results(other), wanted)


def steps(model, optimizer, n=3):
    x = tokens(2, 6)
    for _ in range(n):
        optimizer.zero_grad()
        model.loss(x, x.roll(-1, 1), **source_of(model)).backward()
        optimizer.step()


def held(model):
    """The longest and the shortest constrained vector, and how many spheres there are."""
    lengths = [
        model.get_parameter(c.parameter).detach().norm(dim=c.dim) for c in constraints(model)
    ]
    spheres = [c.kind == "sphere" for c in constraints(model)]
    shortest = min(v.min().item() for v in lengths)
    return max(v.max().item() for v in lengths), 1.0 if not any(spheres) else shortest


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("design", BOUNDED)
def test_copies_and_reloaded_optimizers_keep_the_constraint(design, objective):
    model = make(design, objective)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    constrain(model, optimizer)
    steps(model, optimizer)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    fresh = make(design, objective, seed=9)
    fresh_optimizer = torch.optim.Adam(fresh.parameters(), lr=0.1)
    constrain(fresh, fresh_optimizer)
    fresh.load_state_dict(model.state_dict())
    fresh_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, optimizer)
    for other, its_optimizer in ((twin, twin_optimizer), (fresh, fresh_optimizer)):
        before = results(other).clone()
        steps(other, its_optimizer)
        assert held(other) == pytest.approx((1, 1), abs=1e-6)
        assert torch.equal(results(other), results(model))
        assert not torch.equal(results(other), before)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_deep_copy_shares_nothing(design):
    model = make(design, "seq2seq")
    twin = copy.deepcopy(model)
    before = results(twin)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(results(twin), before)


def test_an_encoder_starts_as_the_causal_model_of_its_seed():
    for design, (architecture, numbers) in DESIGNS.items():
        causal, encoder = (
            build(architecture, objective=o, seed=4, **{**SIZES, **numbers}) for o in ("clm", "mlm")
        )
        for (name, p), q in zip(causal.named_parameters(), encoder.parameters(), strict=True):
            assert torch.equal(p, q), (design, name)
