"""Architecture × objective and × switch: `pytest -k contract --collect-only` names each."""

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from design_cases import (
    DESIGNS,
    EVERY,
    TIME,
    in_turn,
    logits,
    make,
    scattered,
    source_of,
    switches,
    tokens,
)

from unitsphere.models.constraint import constraints, declarations, roles
from unitsphere.models.registry import count_by_role, lay_out
from unitsphere.training.optim.constraint import constrain

NEEDS = {"g": {"qk_norm": True}, "g_init": {"qk_norm": True}}
"""What another switch must say for this one to act."""
CANCELS = ("nu_acf", "attention_factor", "s_u.init")
"""One factor of what a Norm then divides by its length: see test_factors.py."""

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    f"{design}-{objective}-as-published": (design, objective, {}) for design, objective in EVERY
}
CASES |= {
    f"{design}-{in_turn(design, i)}-{case}": (design, in_turn(design, i), numbers)
    for design in DESIGNS
    for i, (case, numbers) in enumerate(switches(design).items())
}


def needed(design, numbers):
    """The design with what the switch needs: what the switch is compared with."""
    takes = DESIGNS[design][0] not in ("angpt", "ngpt")
    return {k: v for name in numbers if takes for k, v in NEEDS.get(name, {}).items()}


def check_parameters(model, architecture):
    """All are declared, and counting by shapes alone finds as many of each role."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert declarations(model).keys() == sizes.keys()
    found: Counter[str] = Counter()
    for name, role in roles(model).items():
        found[role] += sizes[name]
    laid_out = lay_out(architecture, model.config, model.objective)
    assert count_by_role(laid_out) == found


def check_two_steps(model):
    """Logits, loss and gradients are finite, and the constraint holds on the stored tensors."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    constrain(model, optimizer)
    x, source = tokens(2, TIME), source_of(model)
    assert logits(model, x, **source).shape == (2, TIME, 24)
    for _ in range(2):
        loss = model.loss(x, x.roll(-1, 1), **source)
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            assert p.grad is not None, name
            assert torch.isfinite(p.grad).all(), name
        optimizer.step()
    for c in constraints(model):
        length = model.get_parameter(c.parameter).detach().norm(dim=c.dim)
        assert length.max() < 1 + 1e-6, c
        assert c.kind == "ball" or length.min() > 1 - 1e-6, c


def check_causality(model):
    """A token sees itself and its past, an encoder's all, as far as the window; a source is seen
    by all."""
    x, places = tokens(1, TIME).repeat(1 + TIME, 1), torch.arange(TIME)
    x[1 + places, places] = (x[0] + 1) % 24  # row 1 + i differs from row 0 at place i
    source = source_of(model, rows=1)
    several = {key: value.repeat(1 + TIME, 1) for key, value in source.items()}
    found = logits(model, x, **several)
    moved = (found[1:] - found[0]).abs().amax(dim=-1) > 1e-12
    away = places - places[:, None]  # from the place that differs to the one that may notice
    near = away.abs() < (model.config.window or TIME)
    assert torch.equal(moved, near if model.objective == "mlm" else near & (away >= 0))
    for place in (0, -1) if source else ():
        other = several["source"].clone()
        other[:, place] = (other[:, place] + 1) % 24
        assert ((logits(model, x, other) - found).abs().amax(dim=-1) > 1e-12).all()


@functools.cache
def plain(design, objective, needs):
    """What the switches of a design are compared with."""
    return signature(make(design, objective, **dict(needs)))


def signature(model):
    """The parameters' shapes and bounds, and logits after a fixed disturbance of the start."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    bounds = constraints(model)
    scattered(model).train()  # dropout is a switch too
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        return shapes, bounds, logits(model, tokens(2, TIME), **source_of(model))


@pytest.mark.parametrize("case", CASES)
def test_contract(case):
    design, objective, numbers = CASES[case]
    needs = needed(design, numbers)
    model = make(design, objective, **{**needs, **numbers})
    check_parameters(model, DESIGNS[design][0])
    check_two_steps(model)
    check_causality(scattered(model))
    if numbers and not any(name in case for name in CANCELS):
        found = signature(make(design, objective, **{**needs, **numbers}))
        base = plain(design, objective, tuple(needs.items()))
        alike = found[:2] == base[:2] and torch.allclose(found[2], base[2], rtol=0, atol=1e-7)
        assert not alike, "the switch changes nothing"
