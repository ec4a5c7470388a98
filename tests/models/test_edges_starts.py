"""How deep and how wide models start: spreads across, output matrices, the length of anGPT's h."""

import math

import pytest
import torch
from design_cases import make, tokens

from unitsphere.models import context as contexts
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
