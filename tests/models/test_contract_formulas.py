"""The exact counts that docs/architectures.md gives, with an MLP that is not four times as wide."""

import math

import pytest
from design_cases import DESIGNS, make

d, L, H, f, V, P = 12, 3, 3, 20, 29, 17
SIZES = {"d_model": d, "n_layers": L, "n_heads": H, "d_ff": f, "vocab_size": V}
SWIGLU, PLAIN = 4 * d * d + 3 * d * f, 4 * d * d + 2 * d * f
CROSS = 4 * d * d

LAYER = {  # beside the matrices: of a layer, of the whole model, of a sublayer across, of a memory
    "gpt": (2 * d, d, d, d),
    "gpt+": (2 * d + H, d, d + H, d),
    "ngpt": (3 * d + 2 * f, V, 2 * d, 0),
    "angpt": (2 * d + H, V, d + H, 0),
    "normformer": (9 * d + f + 2 * d + 2 * f + H, 2 * d, 6 * d + 2 * d + H, 2 * d),
    "pre-ln": (9 * d + f, 2 * d, 6 * d, 2 * d),
    "post-ln": (9 * d + f, 0, 6 * d, 0),
    "rezero": (1, 0, 0, 0),
    "lnscaling": (2 * d + H, d, d + H, d),
    "dyt": (2 * (d + 1) + H, d + 2, d + 1 + H, d + 1),
}


def count(design, objective="clm", **numbers):
    model = make(design, objective, device="meta", **{**SIZES, **numbers})
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("design", DESIGNS)
def test_counts_of_the_table(design):
    layer, whole, across, memory = LAYER[design]
    layer += PLAIN if DESIGNS[design][0] == "normformer" else SWIGLU
    for tied, tables in ((True, V * d), (False, 2 * V * d)):
        causal = L * layer + whole + tables
        assert count(design, tied=tied) == count(design, "mlm", tied=tied) == causal
        both = causal + L * layer + L * (CROSS + across) + memory
        assert count(design, "seq2seq", tied=tied) == both


def test_counts_of_the_switches_that_add_parameters():
    for numbers, extra in (
        ({"res_scale": True}, L * d),
        ({"qkv_ln": True}, 6 * L * d),
        ({"activation": "geglu"}, L * (d * f + f)),
        ({"positions": "learned", "max_positions": P}, P * d),
    ):
        assert count("normformer", **numbers) - count("normformer") == extra
    across = count("normformer", "seq2seq", qkv_ln=True) - count("normformer", "seq2seq")
    assert across == 3 * 6 * L * d  # encoder, decoder, across
    gated = {"residual": "gated"}
    assert count("ngpt", **gated) - count("ngpt") == 2 * L * d
    # encoder 2·L·d, decoder 3·L·d with the gate across
    assert count("ngpt", "seq2seq", **gated) - count("ngpt", "seq2seq") == 5 * L * d
    assert count("gpt", gated=True) - count("gpt") == 2 * L * d
    assert count("gpt", "seq2seq", gated=True) - count("gpt", "seq2seq") == 5 * L * d
    assert count("gpt", output_norm=True) - count("gpt") == 2 * L * d
    assert count("gpt", "seq2seq", output_norm=True) - count("gpt", "seq2seq") == 5 * L * d
    for design in ("gpt", "ngpt"):
        values = count(design, value_embeddings=True) - count(design)
        assert values == math.ceil(L / 2) * (V * d + H)
    for design in ("gpt", "ngpt", "angpt"):
        assert count(design, token_shift=True) - count(design) == 2 * d
        pairs = count(design, bigram_rows=10) - count(design)
        assert pairs == 10 * (d // 4) + d * (d // 4) + d
        assert count(design, bigram_rows=10, bigram_dim=3) - count(design) == 10 * 3 + d * 3 + d
        assert count(design, key_offset=True, rotary_fraction=0.5) == count(design)
    assert count("dyt", beta=True) - count("dyt") == (2 * L + 1) * d
    # encoder and decoder, across and of the memory
    assert count("dyt", "seq2seq", beta=True) - count("dyt", "seq2seq") == (5 * L + 2) * d


MATRICES = {"normformer": 2 * d * f + f + d}
"""Of the MLP, with their biases."""


@pytest.mark.parametrize("design", ["gpt", "ngpt", "angpt", "normformer", "lnscaling"])
@pytest.mark.parametrize("shared", [0, 2])
def test_counts_of_experts(design, shared):
    E, mlp = 4, MATRICES.get(design, 3 * d * f)
    more = count(design, n_experts=E, shared_experts=shared) - count(design)
    hidden = {"ngpt": 2, "normformer": 2}.get(design, 0) * f  # s_u and s_ν, or LN_f
    wide = shared * (mlp + hidden) - (d * (shared - 1) if design == "normformer" else 0)
    router = E * d + {"ngpt": 1, "angpt": 1, "normformer": E}.get(design, 0)
    assert more == L * ((E - 1) * mlp + router + (wide if shared else 0))
