import math

import pytest
import torch

from unitsphere.ops.norm import unit_norm
from unitsphere.ops.residual import add_norm, gate, lerp, lerp_norm, riemannian, slerp


def pair(d=64, rows=8):
    generator = torch.Generator().manual_seed(0)
    h, x = torch.randn(2, rows, d, dtype=torch.float64, generator=generator)
    return unit_norm(h), 5 * x


@pytest.mark.parametrize("rule", [lerp_norm, add_norm, slerp, riemannian])
def test_h_stays_on_the_sphere(rule):
    h, x = pair()
    alpha = torch.linspace(0, 0.9, 64, dtype=torch.float64)
    lengths = rule(h, x, alpha).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("rule", [lerp_norm, add_norm, slerp, riemannian])
def test_alpha_zero_changes_nothing(rule):
    h, x = pair()
    torch.testing.assert_close(rule(h, x, 0.0), h)


@pytest.mark.parametrize("rule", [lerp_norm, slerp])
def test_alpha_one_gives_the_sublayer(rule):
    h, x = pair()
    torch.testing.assert_close(rule(h, x, 1.0), unit_norm(x))


def test_a_constant_alpha_is_as_exact_as_h():
    h, x = pair()
    expected = unit_norm(h + 0.3 * (unit_norm(x) - h))
    torch.testing.assert_close(lerp_norm(h, x, 0.3), expected, rtol=1e-14, atol=1e-14)


def test_add_norm_moves_less_by_what_is_shorter():
    h, x = pair()
    alpha = torch.linspace(0.1, 0.9, 64, dtype=torch.float64)
    short, long = ((add_norm(h, size * unit_norm(x), alpha) * h).sum(-1) for size in (0.1, 1.0))
    assert (short > long).all()
    torch.testing.assert_close(add_norm(h, 2 * x, alpha), add_norm(h, x, 2 * alpha))
    assert add_norm(h.bfloat16(), x.float(), alpha.float()).dtype == torch.bfloat16


def test_a_gate_is_one_number_a_token_that_starts_at_one():
    h, x = pair()
    assert torch.equal(gate(h, x, torch.zeros(64, dtype=torch.float64)), x)
    w = torch.linspace(-3, 3, 64, dtype=torch.float64)
    factors = gate(h, x, w) / x
    expected = 2 / (1 + torch.exp(-(h @ w)))
    torch.testing.assert_close(factors, expected[:, None].expand_as(x))
    torch.testing.assert_close(gate(h, x, 1e3 * h[0])[0], 2 * x[0])
    assert gate(h.bfloat16(), x.bfloat16(), w.float()).dtype == torch.bfloat16


def test_a_gate_is_as_exact_under_autocast():
    h, x = (t.float() for t in pair())
    w = 1e-3 * torch.ones(64)
    with torch.autocast("cpu", torch.bfloat16):
        found = gate(h, x, w)
    assert torch.equal(found, gate(h, x, w))
    assert not torch.equal(found, x)


def test_a_gates_gradients_are_those_of_finite_differences():
    h, x = (t.requires_grad_() for t in pair(d=6, rows=3))
    w = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gate, (h, x, w))


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.8])
def test_slerp_moves_by_its_share_of_the_angle(alpha):
    h, x = pair()
    angle = torch.acos((h * unit_norm(x)).sum(-1))
    moved = torch.acos((h * slerp(h, x, alpha)).sum(-1))
    torch.testing.assert_close(moved, alpha * angle)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slerp_of_aligned_vectors_is_finite(sign):
    h, _ = pair()
    x = (sign * h).requires_grad_()
    y = slerp(h, x, torch.full((64,), 0.25, dtype=torch.float64))
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def test_nu_alpha_keeps_the_length_in_expectation():
    generator = torch.Generator().manual_seed(0)
    h, x = unit_norm(torch.randn(2, 4000, 256, dtype=torch.float64, generator=generator))
    for alpha in (0.05, 0.25, 0.5):
        y = lerp(h, x, torch.full((256,), alpha, dtype=torch.float64))
        assert abs(y.square().sum(-1).mean().item() - 1) < 5e-3
        plain = lerp(h, x, torch.full((256,), alpha, dtype=torch.float64), nu_alpha=1.0)
        expected = math.sqrt(1 - 2 * alpha + 2 * alpha**2)
        assert abs(plain.norm(dim=-1).mean().item() - expected) < 5e-3


def by_the_equation(h, x, alpha):
    """nGPT eq. 10 as it is written."""
    return unit_norm(h + alpha * (unit_norm(x) - h))


def gradients(rule, *inputs):
    found = rule(*inputs)
    return [found, *torch.autograd.grad(found.sin().sum(), inputs)]


@pytest.mark.parametrize("shape", [(64,), ()])
@pytest.mark.parametrize("special", ["", "x", "h"])
def test_lerp_norm_and_its_gradients_are_those_of_the_equation(shape, special):
    h, x = pair()
    alpha = torch.rand(shape, dtype=torch.float64)
    {"x": x, "h": h}.get(special, torch.zeros(1, 1))[0] = 0  # a zero vector, in either place
    inputs = [t.requires_grad_() for t in (h, x, alpha)]
    for ours, theirs in zip(
        gradients(lerp_norm, *inputs), gradients(by_the_equation, *inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_lerp_norm_can_be_differentiated_twice_and_by_rows():
    h, x = pair(d=5, rows=3)
    alpha = torch.rand(5, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (h, x, alpha))
    assert torch.autograd.gradgradcheck(lerp_norm, inputs)
    each = torch.func.vmap(torch.func.grad(lambda h, x: lerp_norm(h, x, alpha).sin().sum()))
    whole = torch.autograd.grad(lerp_norm(h, x, alpha).sin().sum(), h)[0]
    torch.testing.assert_close(each(h, x), whole)


def test_only_inputs_are_kept_for_the_backward_pass():
    """What lies between h, x and the result is computed again: a step needs no memory for it."""
    h, x = (t.requires_grad_() for t in pair())
    alpha = torch.rand(64, dtype=torch.float64).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        lerp_norm(h, x, alpha)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in (h, x, alpha)}


def test_in_half_precision_the_gradients_have_the_inputs_types():
    h, x = (t.to(torch.bfloat16).requires_grad_() for t in pair())
    alpha = torch.rand(64).requires_grad_()
    lerp_norm(h, x, alpha).sum().backward()
    assert [t.grad.dtype for t in (h, x, alpha)] == [torch.bfloat16, torch.bfloat16, torch.float32]
