"""ReZero, LN-scaling and DyT: closed forms, and each beside a GPT that is made into it."""

import math

import pytest
import torch
from torch import nn

from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, roles
from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import build

V, D, L, H = 23, 16, 3, 2
SMALL = {"vocab_size": V, "d_model": D, "n_layers": L, "n_heads": H}
PLUS = {"qk_norm": True, "rotary_fraction": 0.5}
TOKENS = torch.randint(0, V, (2, 7), generator=torch.Generator().manual_seed(0))


def randomised(name, **numbers):
    """A model in double, every parameter moved away from its start."""
    model = build(name, **SMALL, **numbers).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def gpt_with(model, **numbers):
    """A GPT with the matrices that it shares with `model`."""
    gpt = build("gpt", **SMALL, **numbers).double()
    own = dict(gpt.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in own:
                own[name].copy_(p)
    return gpt


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("numbers", [PLUS, {"qk_norm": False, "rotary_fraction": 1.0}])
def test_ln_scaling_is_gpt_with_its_gains_divided_by_the_root_of_the_depth(numbers, tied):
    model = randomised("lnscaling", **numbers, tied=tied)
    gpt = gpt_with(model, **numbers, tied=tied)
    with torch.no_grad():
        for depth, block in enumerate(gpt.blocks, start=1):
            block.norm_A.gain.div_(math.sqrt(depth))
            block.norm_M.gain.div_(math.sqrt(depth))
    torch.testing.assert_close(model(TOKENS), gpt(TOKENS), rtol=1e-11, atol=1e-12)


def test_ln_scaling_has_the_parameters_of_gpt_plus_and_its_defaults():
    model, gpt = build("lnscaling", **SMALL), build("gpt", **SMALL, **PLUS)
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in gpt.named_parameters()
    }
    assert [block.depth_scale for block in model.blocks] == [1, 1 / math.sqrt(2), 1 / math.sqrt(3)]
    assert not list(model.buffers())


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("numbers", [PLUS, {"qk_norm": False, "rotary_fraction": 1.0}])
def test_dyt_is_gpt_with_tanh_for_norms_and_scaled_embeddings(numbers, beta):
    model = randomised("dyt", **numbers, beta=beta)
    gpt = gpt_with(model, **numbers)
    for mine, theirs in zip(gpt.blocks, model.blocks, strict=True):
        mine.norm_A, mine.norm_M = theirs.norm_A, theirs.norm_M
    gpt.norm = model.norm
    with torch.no_grad():
        gpt.E_in.weight.mul_(model.s.stored)
    torch.testing.assert_close(model(TOKENS), gpt(TOKENS), rtol=1e-11, atol=1e-12)


def test_dyt_is_gamma_tanh_of_alpha_x_plus_beta():
    norm = randomised("dyt", beta=True).blocks[1].norm_M
    x = torch.randn(5, D, dtype=torch.float64)
    a, e = norm.alpha.item(), torch.exp
    wanted = norm.gain * (e(a * x) - e(-a * x)) / (e(a * x) + e(-a * x)) + norm.bias
    torch.testing.assert_close(norm(x), wanted)


def test_dyt_starts_at_the_paper_s_values():
    model = build("dyt", **SMALL, beta=True, alpha_init=0.8)
    for norm in (model.norm, model.blocks[2].norm_A):
        assert norm.alpha.item() == pytest.approx(0.8)
        assert torch.equal(norm.gain, torch.ones(D))
        assert torch.equal(norm.bias, torch.zeros(D))
    assert build("dyt", **SMALL).norm.alpha.item() == 0.5
    assert model.s().item() == pytest.approx(math.sqrt(D))
    role = roles(model)
    assert [role[f"norm.{n}"] for n in ("alpha", "gain", "bias")] == ["scale", "gain", "bias"]
    assert role["s.stored"] == "scale"


def test_rezero_starts_as_its_embeddings_and_head_with_every_layer_the_identity():
    model = build("rezero", **SMALL).double()
    states = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, out: states.append((args[0], out)))
    logits = model(TOKENS)
    assert len(states) == L
    assert all(torch.equal(before, after) for before, after in states)
    torch.testing.assert_close(logits, model.E_in.weight[TOKENS] @ model.E_out.weight.T)
    model.loss(TOKENS, TOKENS.roll(-1, 1)).backward()
    for block in model.blocks:
        assert block.a.stored.grad.abs() > 0
        assert not block.attention.W_o.weight.grad.any()


def test_rezero_is_gpt_without_norms_whose_output_matrices_carry_a():
    model = randomised("rezero")
    gpt = gpt_with(model)
    gpt.norm = nn.Identity()
    with torch.no_grad():
        for mine, theirs in zip(gpt.blocks, model.blocks, strict=True):
            mine.norm_A, mine.norm_M = nn.Identity(), nn.Identity()
            mine.attention.W_o.weight.mul_(theirs.a.stored)
            mine.mlp.W_oMLP.weight.mul_(theirs.a.stored)
    torch.testing.assert_close(model(TOKENS), gpt(TOKENS), rtol=1e-11, atol=1e-12)


def test_rezero_s_embeddings_start_at_unit_variance_unless_they_are_the_head_too():
    size = {**SMALL, "vocab_size": 2000}
    assert build("rezero", **size).E_in.weight.std().item() == pytest.approx(1, rel=0.05)
    tied = build("rezero", **size, tied=True).E_in.weight.std().item()
    assert tied == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("rezero", L),
        ("lnscaling", (2 * L + 1) * D + H * L),
        ("dyt", (2 * L + 1) * (D + 1) + H * L + 1),
    ],
)
def test_parameters_beside_the_matrices(name, extra):
    model = build(name, **SMALL)
    assert sum(p.numel() for p in model.parameters()) == 16 * D * D * L + 2 * V * D + extra
    assert not constraints(model)


def test_a_scale_that_could_never_leave_zero_is_refused():
    with pytest.raises(UserError, match=r"init 0\.0 and scale 0\.25 would always be 0 or infinite"):
        build("ngpt", **SMALL, alpha=ScaleConfig(init=0.0))
    with pytest.raises(UserError, match=r"init 0\.05 and scale 0\.0 would always be 0 or infinite"):
        build("ngpt", **SMALL, alpha=ScaleConfig(init=0.05, scale=0.0))
    assert build("ngpt", **SMALL, alpha=ScaleConfig("fixed", 0.0)).blocks[0].alpha_A() == 0


def test_learned_positions_end_where_they_end():
    learned = {"positions": "learned", "max_positions": 7}
    model = build("normformer", **SMALL, **learned)
    model(TOKENS)
    cache = model.new_cache(2, 9)
    model(TOKENS, cache)
    with pytest.raises(UserError, match=r"8 tokens, but the model has learned positions for 7"):
        model(TOKENS[:, :1], cache)


def test_weights_normalised_in_the_forward_need_no_length_of_their_own():
    model = randomised("ngpt", normalize_in_forward=True)
    before = model(TOKENS)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.mul_(7)
    torch.testing.assert_close(model(TOKENS), before)
