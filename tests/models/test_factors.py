"""anGPT's factors, directly: they cancel in the Norm after them, so no logit can show them."""

import math
from dataclasses import replace

import pytest
import torch

from unitsphere.models.context import SelfContext
from unitsphere.models.registry import build
from unitsphere.ops.rope import rope_table

D, D_FF, H = 16, 40, 2
SMALL = {"vocab_size": 23, "d_model": D, "n_layers": 2, "n_heads": H, "d_ff": D_FF}
TIME = 5


def context(mask=None):
    positions = torch.arange(TIME)
    table = rope_table(positions, 4, 10000.0, torch.float64)
    return SelfContext(positions, table, mask, True, None)


def pair(**numbers):
    """A model in double and a hidden state."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(2, TIME, D, dtype=torch.float64, generator=generator)
    return build("angpt", **SMALL, **numbers).double(), h


def test_values():
    block = pair()[0].blocks[0]
    assert block.attention.nu_qkv == pytest.approx(math.sqrt(2))
    assert block.attention.nu_p == pytest.approx(math.sqrt(1 / 2))
    assert block.mlp.nu_uz == pytest.approx(math.sqrt(16 / 40))
    assert block.mlp.nu_d == pytest.approx(math.sqrt(40 / 16))
    assert block.mlp.z_gain == 4
    assert pair(z_gain="1")[0].blocks[0].mlp.z_gain == 1


def test_nu_acf_is_the_paper_s_or_that_of_the_activation_and_the_gate_s_spread():
    wide = {"d_ff": 64}
    assert build("angpt", **{**SMALL, **wide}, nu_acf=3.74).blocks[0].mlp.nu_acf == 3.74
    for numbers, value in (
        ({}, 3.7203492),
        ({"activation": "gelu"}, 3.4605034),
        ({"activation": "relu2"}, 1 / math.sqrt(1.5 / 16)),
        ({"activation": "relu2", "z_gain": "1"}, 1 / math.sqrt(1.5 / 16 / 16**2)),
    ):
        model = build("angpt", **{**SMALL, **wide}, **numbers)
        assert model.blocks[0].mlp.nu_acf == pytest.approx(value, rel=1e-7)


def test_the_first_token_s_attention_shows_nu_qkv_and_nu_p():
    """It looks at itself alone, so h_A = W_p W_v h · ν_qkv ν_p, and ν_qkv ν_p = 1."""
    model, h = pair()
    attention = model.blocks[0].attention
    attention.nu_qkv, attention.nu_p = 3.0, 5.0
    wanted = 15 * h[:, 0] @ attention.W_v.weight.T @ attention.W_p.weight.T
    torch.testing.assert_close(attention(h, context())[:, 0], wanted)


def test_the_mlp_shows_its_factors_one_by_one():
    model, h = pair(activation="relu2")
    mlp = model.blocks[0].mlp
    mlp.nu_uz, mlp.nu_d, mlp.nu_acf, mlp.z_gain = 3.0, 5.0, 7.0, 11.0
    u, z = h @ mlp.W_u.weight.T * 3, h @ mlp.W_z.weight.T * 33
    wanted = (u * torch.relu(z) ** 2 * 7) @ mlp.W_d.weight.T * 5
    torch.testing.assert_close(mlp(h), wanted)


def seen():
    mask = torch.tensor([[1, 0, 1, 0, 0]] * TIME).bool()
    mask[3] = True
    return {"causal": (None, [1, 2, 3, 4, 5]), "mask": (mask, [2, 2, 2, 5, 2])}


@pytest.mark.parametrize("case", seen())
def test_attention_factor_is_the_root_of_the_keys_that_a_query_sees(case):
    mask, keys = seen()[case]
    model, h = pair(attention_factor=True)
    attention = model.blocks[0].attention
    scaled = attention(h, context(mask))
    attention.attention_factor = False
    root = torch.tensor(keys).double().sqrt()[:, None]
    torch.testing.assert_close(scaled, attention(h, context(mask)) * root)


def test_attention_factor_counts_cached_keys_and_no_padding(monkeypatch):
    counts = []
    count = SelfContext.keys_seen
    monkeypatch.setattr(
        SelfContext, "keys_seen", lambda c, k: counts.append(count(c, k)) or counts[-1]
    )
    model, _ = pair(attention_factor=True)
    tokens = torch.zeros(2, TIME, dtype=torch.int64)
    cache = model.new_cache(2, TIME)
    for part in (tokens[:, :2], tokens[:, 2:3], tokens[:, 3:]):
        model(part, cache)
    assert [c.flatten().tolist() for c in counts[::2]] == [[1, 2], [3], [4, 5]]
    counts.clear()
    model(tokens, left_padding=torch.tensor([0, 2]))
    assert counts[0].shape == (2, 1, TIME, 1)
    assert counts[0][0].flatten().tolist() == [1, 2, 3, 4, 5]
    assert counts[0][1, 0, 2:].flatten().tolist() == [1, 2, 3]


def results(change):
    """Logits and gradients of a model whose blocks `change` has altered."""
    model, _ = pair()
    for block in model.blocks:
        change(block)
    tokens = torch.randint(0, 23, (2, 7), generator=torch.Generator().manual_seed(1))
    model.loss(tokens, tokens.roll(1, 1)).backward()
    return [model(tokens), *(p.grad for p in model.parameters())]


def change_factor(block, factor, value):
    part = block.attention if hasattr(block.attention, factor) else block.mlp
    assert hasattr(part, factor)
    setattr(part, factor, value)


@pytest.mark.parametrize("factor", ["nu_qkv", "nu_p", "nu_d", "nu_acf", "attention_factor"])
def test_factors_before_a_norm_cancel_in_logits_and_gradients(factor):
    plain = results(lambda block: None)
    changed = results(lambda block: change_factor(block, factor, 2.5))
    for a, b in zip(plain, changed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


def test_nu_uz_acts_through_the_gate():
    plain, changed = (
        results(lambda block: None),
        results(lambda block: change_factor(block, "nu_uz", 2)),
    )
    assert (plain[0] - changed[0]).abs().max() > 1e-4


def test_a_mask_that_says_causal_is_causality():
    model, _ = pair()
    tokens = torch.arange(TIME)[None]
    causal = torch.ones(TIME, TIME).tril().bool()
    torch.testing.assert_close(model(tokens, mask=causal), model(tokens))
    assert replace(context(), mask=causal).keys_seen(torch.empty(0)).flatten().tolist() == [
        1,
        2,
        3,
        4,
        5,
    ]
