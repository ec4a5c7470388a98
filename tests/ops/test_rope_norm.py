"""The plain functions that kernels replace, where no other test has them."""

import pytest
import torch

from unitsphere.ops.norm import unit_norm
from unitsphere.ops.residual import lerp_norm
from unitsphere.ops.rope import rope, rope_norm, rope_table


def heads(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 5, 8, generator=generator, dtype=dtype)


@pytest.mark.parametrize("d_rot", [4, 8])
def test_rope_norm_turns_then_normalises_then_scales(d_rot):
    x, table = heads(), rope_table(torch.arange(5), d_rot, 10000.0, torch.float64)
    s_qk = torch.linspace(0.5, 2, 24, dtype=torch.float64).view(3, 1, 8)
    torch.testing.assert_close(rope_norm(x, table, s_qk), unit_norm(rope(x, table)) * s_qk)
    assert torch.equal(rope_norm(x, table), rope_norm(x, table, 1.0))
    lengths = rope_norm(x, table, s_qk[:, :, :1]).norm(dim=-1)
    torch.testing.assert_close(lengths, s_qk[:, :, 0].expand(2, 3, 5))


def test_a_scale_in_fp32_widens_neither_heads_nor_hidden_state():
    x, table = heads(torch.bfloat16), rope_table(torch.arange(5), 8, 10000.0)
    assert rope_norm(x, table, torch.ones(3, 1, 8)).dtype is torch.bfloat16
    assert lerp_norm(x, x.float(), torch.full((8,), 0.1)).dtype is torch.bfloat16
    assert lerp_norm(x.float(), x, torch.full((8,), 0.1)).dtype is torch.float32
