"""How deep and how wide models start: spreads across, output matrices, the length of anGPT's h."""

import math

import pytest
import torch
from design_cases import make, tokens

from unitsphere.errors import UserError
from unitsphere.models import context as contexts
from unitsphere.models.constraint import constraints
from unitsphere.models.registry import build

PLUS = {"qk_norm": True, "rotary_fraction": 0.5}
LARGE = {"vocab_size": 256, "d_model": 256, "n_layers": 2, "n_heads": 4}


@pytest.mark.parametrize("objective", ["mlm", "seq2seq"])
@pytest.mark.parametrize(
    ("name", "numbers"),
    [("gpt", PLUS), ("ngpt", {}), ("angpt", {}), ("lnscaling", {}), ("dyt", {})],
)
def test_attention_logits_start_with_unit_spread_in_encoders_and_across(
    name, numbers, objective, monkeypatch
):
    """As test_mistakes.py has it for causal attention; a memory's 48 vectors vary more by head."""
    spreads, keys = [], []

    def watched(q, k, v, scale, mask, causal, dropout):
        scores = q @ k.transpose(-1, -2) * scale
        spreads.append(scores.std(dim=(0, 2, 3)))
        keys.append(k.shape[-2])
        return torch.softmax(scores, -1) @ v

    monkeypatch.setattr(contexts, "attention", watched)
    model = build(name, objective=objective, **LARGE, **numbers)
    x = tokens(4, 64, vocabulary=256)
    if objective == "mlm":
        model(x)
        assert keys == [64] * 2
    else:
        model(x, memory=model.encode(tokens(4, 48, seed=1, vocabulary=256)))
        assert keys == [48, 48, 64, 48, 64, 48]  # the encoder's; of each block itself and across
    assert (torch.stack(spreads).mean(-1) - 1).abs().max() < 0.1
    assert (torch.stack(spreads) - 1).abs().max() < 0.2


@pytest.mark.parametrize("name", ["gpt", "lnscaling", "dyt", "normformer"])
def test_output_matrices_start_smaller_by_the_root_of_the_number_of_sublayers(name):
    """2 a layer, 3 with cross-attention; the encoder's blocks have 2."""
    mlp = "W_2" if name == "normformer" else "W_oMLP"
    for objective, sublayers in (("clm", 2), ("mlm", 2), ("seq2seq", 3)):
        model = build(name, objective=objective, **{**LARGE, "n_layers": 3})
        wanted = {"blocks": 0.02 / math.sqrt(sublayers * 3), "encoder": 0.02 / math.sqrt(2 * 3)}
        found = 0
        for key, p in model.named_parameters():
            if key.endswith(("attention.W_o.weight", "cross.W_o.weight", f"mlp.{mlp}.weight")):
                assert p.std().item() == pytest.approx(wanted[key.split(".")[0]], rel=0.02), key
                found += 1
        assert found == {"clm": 6, "mlm": 6, "seq2seq": 15}[objective]


def lengths(model, x):
    """‖h‖ after each block, [layers, batch, time]."""
    found = []
    for block in model.blocks:
        block.register_forward_hook(lambda *args: found.append(args[-1].norm(dim=-1)))
    with torch.no_grad():
        model(x)
    return torch.stack(found)


@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_angpt_s_h_starts_at_length_one_through_36_layers(objective):
    """Nothing normalises h: ν(α) keeps its length in expectation alone (docs/architectures.md)."""
    model = build("angpt", objective=objective, **{**LARGE, "n_layers": 36, "vocab_size": 64})
    found = lengths(model, tokens(2, 24, vocabulary=64))
    assert found.shape == (36, 2, 24)
    assert (found.mean(dim=(1, 2)) - 1).abs().max() < 0.02
    assert (found - 1).abs().max() < 0.15


def test_without_nu_alpha_angpt_s_h_shrinks_to_a_sixth():
    """h → Σ of orthogonal steps: its length tends to √(α/(2 − α)) = 0.16 at α = 0.05."""
    model = build("angpt", nu_alpha=False, **{**LARGE, "n_layers": 36, "vocab_size": 64})
    found = lengths(model, tokens(2, 24, vocabulary=64))[-1].mean().item()
    assert found == pytest.approx(math.sqrt(0.05 / 1.95), abs=0.02)


def test_ngpt_s_h_has_length_one_through_36_layers_of_every_objective():
    for objective in ("clm", "mlm"):
        model = make("ngpt", objective, n_layers=36, d_model=64)
        assert (lengths(model, tokens(2, 16)) - 1).abs().max() < 1e-6


def test_switches_of_the_start_change_only_what_they_name():
    """Rows of E_in by their length; output matrices at zero; all else is drawn as without."""
    plain = dict(build("gpt", **LARGE, **PLUS).named_parameters())
    start = {"embedding_start": "rms", "zero_outputs": "all"}
    for key, p in build("gpt", **LARGE, **PLUS, **start).named_parameters():
        if key == "E_in.weight":
            assert torch.allclose(p.square().mean(1), torch.ones(256), atol=1e-5)
            assert torch.allclose(torch.cosine_similarity(p, plain[key]), torch.ones(256))
        elif key.endswith(("W_o.weight", "W_oMLP.weight", "E_out.weight")):
            assert not p.any(), key
        else:
            assert torch.equal(p, plain[key]), key
    made = build("gpt", **LARGE, embedding_start="unit", zero_outputs="branches")
    assert torch.allclose(made.E_in.weight.norm(dim=1), torch.ones(256), atol=1e-5)
    assert made.E_out.weight.any()
    assert not made.blocks[1].mlp.W_oMLP.weight.any()


def test_a_soft_cap_bounds_the_logits_and_parameters_are_counted():
    with pytest.raises(UserError, match=r"model\.softcap must be a number above 0"):
        build("gpt", **LARGE, softcap=0.0)
    model = build("gpt", **LARGE, softcap=1e-3, embedding_norm=True, activation="relu2", tied=True)
    assert model(tokens(2, 6, vocabulary=256)).abs().max() <= 1e-3
    d, f, V, L = 256, 1024, 256, 2
    counted = V * d + d + L * (4 * d * d + 2 * d * f + 2 * d) + d
    assert sum(p.numel() for p in model.parameters()) == counted


def test_value_embeddings_have_unit_rows_in_ngpt_and_free_ones_in_gpt():
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 3, "n_heads": 2}
    model = build("ngpt", value_embeddings=True, **sizes)
    held = {c.parameter: c.dim for c in constraints(model) if "E_v" in c.parameter}
    assert held == {f"blocks.{layer}.attention.E_v.weight": 1 for layer in (0, 2)}
    for name in held:
        rows = model.get_parameter(name).norm(dim=1)
        torch.testing.assert_close(rows, torch.ones(24))
    assert not constraints(build("gpt", value_embeddings=True, **sizes))


def test_bigrams_leave_the_first_h_as_it_is_at_the_start_and_refuse_impossible_sizes():
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 2, "n_heads": 2}
    x, positions = tokens(2, 6, vocabulary=24), torch.arange(6)
    for design in ("gpt", "ngpt", "angpt"):
        model = build(design, bigram_rows=30, **sizes)
        torch.testing.assert_close(model.start(x, positions), model.embed(x, positions))
    with pytest.raises(UserError, match=r"model\.bigram_rows must be 0 or more: -1"):
        build("gpt", bigram_rows=-1, **sizes)
    with pytest.raises(UserError, match=r"model\.bigram_dim must be at least 1: 0; leave it out"):
        build("gpt", bigram_rows=30, bigram_dim=0, **sizes)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_key_offset_needs_dimensions_that_rope_leaves_and_some_that_it_rotates(fraction):
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 2, "n_heads": 2}
    with pytest.raises(UserError, match=f"rotary_fraction to 0.5, instead of {fraction:g}"):
        build("ngpt", key_offset=True, rotary_fraction=fraction, **sizes)


@pytest.mark.parametrize("d_k", [2, 3])
def test_a_key_offset_in_small_heads_is_refused_with_advice_that_helps(d_k):
    """It said "set model.rotary_fraction to 0.5, instead of 0.5"."""
    sizes = {"vocab_size": 8, "d_model": 12, "n_layers": 1, "rotary_fraction": 0.5}
    with pytest.raises(UserError, match=r"smaller model\.n_heads, for heads of at least 4"):
        build("gpt", **sizes, n_heads=12 // d_k, key_offset=True)
    build("gpt", **sizes, n_heads=3, key_offset=True)


def test_a_key_offset_needs_attention():
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 2, "n_heads": 2}
    sizes |= {"key_offset": True, "rotary_fraction": 0.5}
    with pytest.raises(UserError, match=r"key_offset is of attention, and model.mixers 'gdn' has"):
        build("gpt", mixers="gdn", **sizes)
    assert build("gpt", mixers="gdn attention", **sizes)


def test_value_embeddings_need_attention_in_a_layer_that_has_them():
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 4, "n_heads": 2}
    with pytest.raises(UserError, match=r"model.mixers 'attention gdn' has attention in none"):
        build("gpt", value_embeddings=True, mixers="attention gdn", **sizes)
    assert build("gpt", value_embeddings=True, mixers="gdn attention", **sizes)
