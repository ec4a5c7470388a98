"""FP8 products against fp64, and against the same rounding written out."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import scaled_mm
from torch.utils.checkpoint import checkpoint

from unitsphere.models.parts import Linear
from unitsphere.ops import fp8
from unitsphere.ops.fp8 import DY_TYPE, MULTIPLE, X_TYPE, Bounded, fp8_linear, rounded

STATIC, DYNAMIC = Bounded(x=1.0, weight=1.0), Bounded()

pytestmark = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="torch multiplies FP8 on a CPU from 2.13 on"
)


def unit_rows(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(shape, generator=generator), dim=-1)


def off(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def all_three(x, weight, dy, bounded, scale=None):
    """y, dx and dW."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = fp8_linear(x, weight, scale, bounded)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy)


@pytest.mark.parametrize(("d_in", "d_out"), [(128, 512), (1024, 256)])
def test_static_scales_cost_what_dynamic_ones_cost(d_in, d_out):
    """The specification's synthetic figures: 3.8% against 3.7% a product."""
    x, weight, dy = unit_rows(512, d_in), unit_rows(d_out, d_in, seed=1), unit_rows(512, d_out)
    exact = [a.double() for a in (x, weight, dy)]
    wanted = exact[0] @ exact[1].T, exact[2] @ exact[1], exact[2].T @ exact[0]
    errors = {
        bounded: [off(a, b) for a, b in zip(all_three(x, weight, dy, bounded), wanted, strict=True)]
        for bounded in (STATIC, DYNAMIC)
    }
    for y, dx, dw in errors.values():
        assert 0.035 < y < 0.039
        assert 0.055 < dx < 0.062  # e5m2 has a bit less
        assert 0.055 < dw < 0.062
    assert errors[STATIC] == pytest.approx(errors[DYNAMIC], rel=0.03)


@pytest.mark.parametrize("bounded", [STATIC, DYNAMIC, Bounded(x=4.0), Bounded(weight=2.0)])
def test_the_products_are_those_of_the_rounded_numbers(bounded):
    x, weight, dy = unit_rows(48, 32), unit_rows(64, 32, seed=1), 1e-6 * unit_rows(48, 64)

    def as_rounded(a, scale, kind):
        return (a * scale).to(kind).double() / scale

    x_scale = 256 / bounded.x if bounded.x else 448 / x.abs().max()
    w_scale = 256 / bounded.weight if bounded.weight else 448 / weight.abs().max()
    x8, w8 = as_rounded(x, x_scale, X_TYPE), as_rounded(weight, w_scale, X_TYPE)
    dy8 = as_rounded(dy, 57344 / dy.abs().max(), DY_TYPE)
    wanted = x8 @ w8.T, dy8 @ w8, dy8.T @ x8
    for found, exact in zip(all_three(x, weight, dy, bounded), wanted, strict=True):
        assert off(found, exact) < 1e-5


def test_what_slightly_exceeds_its_bound_is_rounded_and_what_far_exceeds_it_is_clamped():
    x = torch.tensor([[1.0, -1.01, 1.75, 2.0, -1e30, torch.inf] + [0.0] * 10])
    eight, factor = rounded(x, X_TYPE, 1.0)
    back = eight.float() * factor
    assert back[0, :6].tolist() == [1, -1, 1.75, 1.75, -1.75, 1.75]
    y = fp8_linear(x.repeat(16, 1), torch.eye(16), bounded=STATIC)
    assert y.isfinite().all()


@pytest.mark.parametrize("bounded", [STATIC, DYNAMIC])
def test_zeros_give_zeros_and_nan_is_not_hidden(bounded):
    zeros = torch.zeros(16, 16)
    for found in all_three(zeros, zeros, zeros, bounded):
        assert torch.equal(found, zeros)
    for found in all_three(zeros, zeros, zeros, bounded, scale=torch.zeros(16)):
        assert torch.equal(found, zeros)
    assert fp8_linear(zeros + torch.nan, torch.eye(16), bounded=bounded).isnan().all()


@pytest.mark.parametrize("form", ["vector", "scalar", "number"])
def test_a_scale_multiplies_the_outputs_and_has_its_gradient(form):
    x, weight = unit_rows(64, 128), unit_rows(32, 128, seed=1)
    value = {"vector": torch.linspace(-3, 40, 32), "scalar": torch.tensor(8.0), "number": 8.0}[form]
    if isinstance(value, torch.Tensor):
        value.requires_grad_()
    y = fp8_linear(x, weight, value, STATIC)
    exact = (x.double() @ weight.double().T) * value
    assert off(y, exact) < 0.04
    if isinstance(value, torch.Tensor):
        (found,) = torch.autograd.grad(y.square().sum(), value)
        (wanted,) = torch.autograd.grad(exact.square().sum(), value)
        assert found.shape == value.shape
        assert off(found, wanted) < 0.03


@pytest.mark.parametrize("rows", [1, MULTIPLE - 1, MULTIPLE, 2 * MULTIPLE + 3])
def test_any_number_of_tokens(rows):
    x, weight, dy = unit_rows(2, rows, 32), unit_rows(16, 32, seed=1), unit_rows(2, rows, 16)
    y, dx, dw = all_three(x, weight, dy, STATIC)
    assert y.shape == dy.shape
    assert off(y, x.double() @ weight.double().T) < 0.05
    assert off(dx, dy.double() @ weight.double()) < 0.08
    assert off(dw, dy.flatten(0, 1).double().T @ x.flatten(0, 1).double()) < 0.08


def test_a_gpu_could_take_every_product(monkeypatch):
    """cuBLAS on Hopper: rows times columns, sizes that are multiples of 16, one factor in e4m3."""
    seen = []

    def look(a, b, *others, **options):
        seen.append((a.dtype, b.dtype))
        assert (a.stride(1), b.stride(0)) == (1, 1)
        assert not any(size % MULTIPLE for size in (*a.shape[1:], *b.shape))
        return scaled_mm(a, b, *others, **options)

    monkeypatch.setattr("unitsphere.ops.fp8.scaled_mm", look)
    all_three(unit_rows(3, 7, 32), unit_rows(48, 32), unit_rows(3, 7, 48), STATIC)
    assert seen == [(X_TYPE, X_TYPE), (DY_TYPE, X_TYPE), (DY_TYPE, X_TYPE)]


@pytest.mark.parametrize("bounded", [STATIC, DYNAMIC])
def test_autocast_decides_the_type_of_the_outputs_and_of_nothing_else(bounded):
    x, weight = (
        unit_rows(32, 1024).bfloat16().requires_grad_(),
        unit_rows(16, 1024).requires_grad_(),
    )
    wanted = fp8_linear(x, weight, None, bounded)
    (exact_dw,) = torch.autograd.grad(wanted, weight, torch.ones_like(wanted))
    with torch.autocast("cpu", torch.bfloat16):
        y = fp8_linear(x, weight, None, bounded)
        dx, dw = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
    assert wanted.dtype == torch.float32
    assert (y.dtype, dx.dtype, dw.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert torch.equal(y, wanted.bfloat16())  # rounded once, at the end
    assert torch.equal(dw, exact_dw)


def test_a_layer_adds_its_bias_after_the_product():
    layer = Linear(32, 16, std=0.1, bound=None, bias=True)
    layer.reset(torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.bias)
    x = unit_rows(4, 32)
    layer.fp8 = DYNAMIC
    wanted = fp8_linear(x, layer.matrix()) + layer.bias
    assert torch.equal(layer(x), wanted)


def test_checkpointing_changes_nothing():
    scale = torch.linspace(1, 2, 64)

    def loss(x, weight):
        return fp8_linear(x, weight, scale, STATIC).square().sum()

    def gradients(function):
        x, weight = unit_rows(32, 16).requires_grad_(), unit_rows(64, 16).requires_grad_()
        return torch.autograd.grad(function(x, weight), (x, weight))

    again = gradients(lambda *factors: checkpoint(loss, *factors, use_reentrant=False))
    for found, wanted in zip(again, gradients(loss), strict=True):
        assert torch.equal(found, wanted)


def test_the_compiler_need_not_look_into_the_products(monkeypatch):
    """torch 2.11 cannot compile scaled_mm."""
    monkeypatch.setattr(fp8, "scaled_mm", torch._dynamo.disable(scaled_mm))
    torch._dynamo.reset()
    x, weight = unit_rows(32, 64), unit_rows(48, 64, seed=1)
    found = torch.compile(fp8_linear, fullgraph=True, backend="aot_eager")(x, weight)
    assert torch.equal(found, fp8_linear(x, weight))
