import pytest
import torch

from unitsphere.ops.norm import rms_norm, unit_norm


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unit_norm_along_an_axis(dim):
    x = torch.randn(5, 7, dtype=torch.float64)
    lengths = unit_norm(x, dim).norm(dim=dim)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert torch.autograd.gradcheck(lambda x: unit_norm(x, dim), x.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: unit_norm(x, dim), x)


def test_zero_vector_stays_zero_with_a_finite_gradient():
    x = torch.zeros(2, 4)
    x[1] = torch.tensor([3.0, 0, 4, 0])
    x.requires_grad_()
    y = unit_norm(x)
    y.sum().backward()
    assert torch.equal(y[0], torch.zeros(4))
    assert torch.equal(y[1].detach(), torch.tensor([0.6, 0, 0.8, 0]))
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_lengths_are_taken_in_fp32(dtype):
    x = torch.full((4096,), 100.0, dtype=dtype)  # the sum of squares overflows fp16
    y = unit_norm(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), torch.full((4096,), 1 / 64), rtol=1e-2, atol=0)


def test_rms_norm_has_unit_mean_square_times_the_gain():
    x, gain = torch.randn(3, 64, dtype=torch.float64), torch.full((64,), 2.0, dtype=torch.float64)
    y = rms_norm(x, gain, 0.0)
    torch.testing.assert_close(y.square().mean(-1), torch.full((3,), 4.0, dtype=torch.float64))
