"""bf16 and fp16 activations: lengths, means and angles are taken in fp32."""

import pytest
import torch
from design_cases import DESIGNS, OBJECTIVES, make, source_of, tokens

from unitsphere.models.parts import LayerNorm
from unitsphere.ops.norm import rms_norm, unit_norm
from unitsphere.ops.residual import slerp
from unitsphere.ops.rope import sinusoid

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
ULP = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # half a unit in the last place
WIDTH = 4096


def layer_norm(x):
    norm = LayerNorm(WIDTH, 1e-5)
    norm.reset(torch.Generator())
    return norm.to(x.dtype)(x)


NORMS = {
    "unit_norm": unit_norm,
    "rms_norm": lambda x: rms_norm(x, torch.ones(WIDTH, dtype=x.dtype), 1e-6),
    "LayerNorm": layer_norm,
}


@pytest.mark.parametrize("size", [300.0, 1.0, 1e-3])
@pytest.mark.parametrize("norm", NORMS)
@HALVES
def test_a_norm_of_halves_is_that_of_fp64_rounded_once(norm, dtype, size):
    """300² times the width is far above fp16's largest number, 65504; (1e-3)² below its least."""
    noise = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))
    x = (size * noise.clamp(-3, 3)).to(dtype)
    found, exact = NORMS[norm](x), NORMS[norm](x.double())
    assert found.dtype == dtype
    floor = 1e-2 if norm == "LayerNorm" else 1e-4  # near 0 fp16 is as fine as its least number
    error = (found.double() - exact).abs() / exact.abs().clamp(min=floor)
    assert error.max() < 1.01 * ULP[dtype]


@HALVES
def test_slerp_between_equal_and_opposite_halves(dtype):
    """Their cosine rounds to ±1 or beyond; the angle may not become 0/0."""
    g = torch.nn.functional.normalize(torch.randn(500, 64), dim=-1)
    h = g.to(dtype)
    for x in (h, -h, 3 * h):
        start = h.clone().requires_grad_()
        step = slerp(start, x, torch.full((64,), 0.1, dtype=dtype))
        step.float().square().sum().backward()
        assert step.dtype == dtype
        assert torch.isfinite(step).all()
        assert torch.isfinite(start.grad).all()
        torch.testing.assert_close(step.float(), g, rtol=0, atol=4 * ULP[dtype])


@HALVES
def test_sinusoids_tell_every_position_apart_in_halves(dtype):
    positions = torch.arange(2000)
    table = sinusoid(positions, 64, dtype)
    exact = sinusoid(positions, 64, torch.float64)
    assert table.dtype == dtype
    assert (table.double() - exact).abs().max() < 1.1 * ULP[dtype]


def passed(model, autocast=None):
    """Loss and gradients by name, in double."""
    model.zero_grad()
    x = tokens(2, 6)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        loss = model.loss(x, x.roll(-1, 1), **source_of(model))
    loss.backward()
    return loss.double().detach(), {n: p.grad.double() for n, p in model.named_parameters()}


def close(found, exact, tolerance):
    loss, gradients = found
    assert torch.isfinite(loss)
    assert abs(loss - exact[0]) < tolerance * exact[0]
    total = torch.stack([g.norm() for g in exact[1].values()]).norm()
    for name, gradient in gradients.items():
        assert torch.isfinite(gradient).all(), name
        assert (gradient - exact[1][name]).norm() < 4 * tolerance * total, name


@HALVES
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("design", DESIGNS)
def test_autocast_and_stored_halves_are_near_fp64(design, objective, dtype):
    model = make(design, objective)
    exact = passed(model.to(dtype).double())  # the weights that halves can hold
    tolerance = 16 * ULP[dtype]
    close(passed(model.float(), autocast=dtype), exact, tolerance)
    close(passed(model.to(dtype)), exact, tolerance)


NORMALIZED = [d for d in DESIGNS if d not in ("rezero", "dyt", "angpt")]  # which norm h


@HALVES
@pytest.mark.parametrize("design", NORMALIZED)
def test_hidden_states_of_300_do_not_overflow(design, dtype):
    """‖h‖² is 300²·64, a hundred times what fp16 holds."""
    model = make(design, d_model=64, n_layers=2)
    table = next(p for n, p in model.named_parameters() if n in ("E_in.weight", "E.weight"))
    with torch.no_grad():
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(0)).sign())
        table.mul_(300 / getattr(model, "root_d", 1.0))
    x = tokens(2, 6)
    exact = model.to(dtype).double().features(x)
    found = model.to(dtype).features(x).double()
    assert torch.isfinite(found).all()
    assert (found - exact).norm() < 8 * ULP[dtype] * exact.norm()
