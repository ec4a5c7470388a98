"""The mistakes of public implementations, each caught (RoPE's in tests/ops/test_rope.py, the KV
cache's and the meta device's in test_contract.py, bf16 weights' in
tests/training/optim/test_optim_config.py).
"""

import math

import pytest
import torch

from unitsphere.models import context as contexts
from unitsphere.models.constraint import constraints
from unitsphere.models.registry import build
from unitsphere.ops.rope import rope_table

LARGE = {"vocab_size": 256, "d_model": 256, "n_layers": 2, "n_heads": 4}
PLUS = {"qk_norm": True, "rotary_fraction": 0.5}


def random_tokens(rows=4, time=64):
    return torch.randint(0, 256, (rows, time), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "numbers"), [("gpt", PLUS), ("ngpt", {}), ("angpt", {})])
def test_attention_logits_start_with_unit_spread_in_every_head(name, numbers, monkeypatch):
    """q and k normalised over the full width before the head split would give 1/H."""
    spreads = []

    def watched(q, k, v, scale, mask, causal, dropout):
        scores = q @ k.transpose(-1, -2) * scale
        spreads.append(scores.std(dim=(0, 2, 3)))
        return torch.softmax(scores, -1) @ v

    monkeypatch.setattr(contexts, "attention", watched)
    build(name, **LARGE, **numbers)(random_tokens())
    assert len(spreads) == 2
    assert (torch.stack(spreads) - 1).abs().max() < 0.1


def test_the_gate_starts_where_the_paper_says():
    """‖h‖ = 1 and unit rows: ν·√d has standard deviation 1 in nGPT, z has ½ in anGPT."""
    h = torch.nn.functional.normalize(torch.randn(2000, 256), dim=-1)
    mlp = build("ngpt", **LARGE).blocks[0].mlp
    gate = mlp.W_nu(h) * (mlp.s_nu() * mlp.root_d)
    assert abs(gate.std().item() - 1) < 0.05
    mlp = build("angpt", **LARGE).blocks[0].mlp
    gate = mlp.W_z(h) * (mlp.nu_uz * mlp.z_gain)
    assert abs(gate.std().item() - 0.5) < 0.025


def test_ngpt_hidden_states_stay_on_the_sphere_through_36_layers():
    model = build("ngpt", vocab_size=256, d_model=64, n_layers=36, n_heads=2)
    lengths = []
    for block in model.blocks:
        block.register_forward_hook(lambda *args: lengths.append(args[-1].norm(dim=-1)))
    model(random_tokens(2, 16))
    assert len(lengths) == 36
    assert (torch.stack(lengths) - 1).abs().max() < 1e-6


def test_every_ngpt_vector_has_length_d_model():
    """The output projections are sets of vectors along their out axis, the others along in."""
    model = build("ngpt", **{**LARGE, "d_ff": 96})
    parameters = dict(model.named_parameters())
    matrices = {name for name, p in parameters.items() if name.endswith("weight")}
    declared = constraints(model)
    assert {c.parameter for c in declared} == matrices
    for c in declared:
        assert c.kind == "sphere"
        assert parameters[c.parameter].shape[c.dim] == 256
        written = model.state_dict()[c.parameter]  # W [out, in], however it is stored
        axis = 0 if c.parameter.endswith(("W_o.weight", "W_oMLP.weight")) else 1
        assert (written.norm(dim=axis) - 1).abs().max() < 1e-6


def test_every_angpt_matrix_is_bounded_along_its_in_axis():
    model = build("angpt", **LARGE)
    declared = constraints(model)
    assert {c.parameter for c in declared} == {
        n for n, _ in model.named_parameters() if n.endswith("weight")
    }
    assert all((c.dim, c.kind) == (1, "ball") for c in declared)


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_constrained_weights_start_at_length_one(name):
    model = build(name, **LARGE)
    parameters = dict(model.named_parameters())
    for c in constraints(model):
        assert (parameters[c.parameter].norm(dim=c.dim) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("gpt", ("attention.W_o", "mlp.W_oMLP")), ("normformer", ("attention.W_o", "mlp.W_2"))],
)
def test_baseline_block_is_the_identity_when_its_outputs_are_zero(name, outputs):
    """h = norm(h) + attn(norm(h)), a broken baseline, is not."""
    off = {"post_attn_ln": False} if name == "normformer" else {}
    block = build(name, **LARGE, **off).blocks[0]
    with torch.no_grad():
        for matrix in outputs:
            block.get_submodule(matrix).weight.zero_()
    h = 3 * torch.randn(2, 5, 256)
    positions = torch.arange(5)
    rope = rope_table(positions, 64, 10000.0)
    assert torch.equal(block(h, contexts.SelfContext(positions, rope, None, True, None)), h)


def test_scales_start_at_s_init_and_are_stored_at_s_scale():
    model = build("ngpt", **LARGE)
    block, slow = model.blocks[0], 1 / math.sqrt(256)
    for scale, init, start in (
        (block.alpha_A, 0.05, slow),
        (block.alpha_M, 0.05, slow),
        (block.attention.s_qk, 1.0, slow),
        (block.mlp.s_u, 1.0, 1.0),
        (block.mlp.s_nu, 1.0, 1.0),
        (model.s_z, 1.0, slow),
    ):
        assert torch.allclose(scale(), torch.full_like(scale(), init))
        assert torch.allclose(scale.stored, torch.full_like(scale.stored, start))
    block = build("angpt", **LARGE).blocks[0]
    assert torch.allclose(block.attention.g(), torch.full((4, 1, 1), 8.0))
    assert torch.allclose(block.alpha_A.stored, torch.full((256,), 0.01))


def test_head_scale_acts_on_the_heads_before_the_output_matrix():
    """Zeroing γ of one head removes exactly that head's columns of W_o."""
    block = build("normformer", **LARGE).blocks[0]
    x = torch.randn(2, 5, 256)
    context = contexts.SelfContext(
        torch.arange(5), (torch.empty(0), torch.empty(0)), None, True, None
    )
    with torch.no_grad():
        block.attention.gamma.gain[1] = 0
        scaled = block.attention(x, context)
        block.attention.gamma.gain[1] = 1
        block.attention.W_o.weight[:, 64:128] = 0
        torch.testing.assert_close(scaled, block.attention(x, context))
