"""Each probe on a model whose weights make the answer known."""

import math

import pytest
import torch
from torch import nn

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.inspection import states, updates, weights
from unitsphere.inspection.anatomy import matrices_of
from unitsphere.inspection.trace import trace
from unitsphere.inspection.values import DoesNotApply, layers
from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import build

D, V, HEADS, D_K, D_FF = 16, 40, 2, 8, 64
SMALL = {"vocab_size": V, "d_model": D, "n_layers": 2, "n_heads": HEADS}


def made(name="gpt", **numbers):
    return build(name, **SMALL, **numbers).requires_grad_(False)


def batch(rows=2, time=6):
    tokens = torch.randint(0, V, (rows, time + 1), generator=torch.Generator().manual_seed(0))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def fill(model, name, value):
    model.get_parameter(name).copy_(value)


def with_singular_values(rows, values):
    """[rows, len(values)] of random orientation with these singular values."""
    generator = torch.Generator().manual_seed(1)
    left, _ = torch.linalg.qr(torch.randn(rows, len(values), generator=generator))
    right, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator))
    return left @ torch.diag(torch.tensor(values)) @ right


def test_embedding_norms_are_the_lengths_of_the_rows():
    model = made()
    fill(model, "E_in.weight", torch.arange(1.0, V + 1)[:, None] * torch.eye(D)[0])
    found = weights.embedding_norms(model)
    assert found["input"]["means"] == [(V + 1) / 2]
    assert found["input"]["quantiles"][0][0::6] == [1.0, V]
    assert set(found) == {"input", "output"}
    assert set(weights.embedding_norms(made(tied=True))) == {"tied"}
    assert weights.embedding_norms(made("ngpt"))["output"]["means"] == [1.0]


def test_embedding_eigenvalues_are_the_variances_along_the_axes():
    # Rows ±k·e_k: no mean, and the variance along axis k is that of its own two rows.
    axes = torch.arange(1.0, D + 1)
    E = torch.cat([torch.diag(axes), -torch.diag(axes)])
    found = weights.eigenvalues_over_median(E)
    wanted = axes.double().square()
    torch.testing.assert_close(found, wanted / wanted.quantile(0.5))
    moved = weights.eigenvalues_over_median(E + 5)  # a covariance knows no mean
    torch.testing.assert_close(moved, found, rtol=1e-4, atol=1e-6)


def test_eigenvalues_of_fewer_tokens_than_dimensions_are_those_with_a_variance():
    """As of bytes: the median of all would be a rounding error."""
    found = weights.eigenvalues_over_median(torch.eye(7, 64))
    torch.testing.assert_close(found, torch.ones(6, dtype=torch.float64))


def test_embedding_dots_are_those_of_pairs_of_different_rows():
    E = torch.cat([torch.eye(3), torch.eye(3)[:1]])  # rows 0 and 3 are the same
    assert weights.pair_dots(E).tolist() == [0, 0, 1, 0, 0, 0]
    model = made()
    fill(model, "E_in.weight", torch.full((V, D), 0.5))
    assert weights.embedding_dots(model)["input"]["means"] == [D / 4]


def test_condition_numbers_by_head_and_renormalised():
    model = made()
    heads = [with_singular_values(D, [10.0] + [1.0] * (D_K - 1)).T, 3 * torch.eye(D)[:D_K]]
    fill(model, "blocks.1.attention.W_q.weight", torch.cat(heads))
    fill(model, "blocks.1.attention.W_o.weight", torch.cat(heads).T)
    fill(model, "blocks.0.mlp.W_u.weight", torch.diag(torch.linspace(1, 7, D)).repeat(4, 1))
    found = weights.condition_numbers(model)
    assert found["W_q"]["labels"] == ["0", "1"]
    assert found["W_q"]["values"][1] == pytest.approx((10 + 1) / 2, rel=1e-4)
    assert found["W_o"]["values"][1] == pytest.approx((10 + 1) / 2, rel=1e-4)
    assert found["W_u"]["values"][0] == pytest.approx(7, rel=1e-4)
    assert found["W_u unit"]["values"][0] == pytest.approx(1, rel=1e-4)


def test_singular_values_vector_norms_and_rank():
    model = made()
    values = [4.0, 2.0] + [0.0] * (D_K - 2)
    head = with_singular_values(D, values).T
    fill(model, "blocks.0.attention.W_v.weight", torch.cat([head, head]))
    found = weights.singular_values(model)["W_v"]
    assert found["quantiles"][0][-1] == pytest.approx(4, rel=1e-4)
    assert found["means"][0] == pytest.approx(6 / D_K, rel=1e-4)
    shares = [2 / 3, 1 / 3]
    rank = math.exp(-sum(p * math.log(p) for p in shares)) / D_K
    assert weights.matrix_rank(model)["W_v"]["values"][0] == pytest.approx(rank, rel=1e-3)
    fill(model, "blocks.0.mlp.W_oMLP.weight", 3 * torch.eye(D).repeat(1, D_FF // D))
    assert weights.vector_norms(model)["W_oMLP"]["means"][0] == 3.0  # its columns
    assert weights.group_norms(model)["W_oMLP"]["values"][0] == 6.0  # its rows: 4 entries of 3


def test_group_norms_of_ngpt_and_angpt_at_their_start():
    found = weights.group_norms(made("ngpt"))
    assert found["W_q"]["values"] == pytest.approx([1, 1], abs=1e-5)
    assert found["input embedding"] == {"labels": [""], "values": [1.0]}
    angpt = weights.group_norms(made("angpt"))
    assert angpt["W_d"]["values"] == pytest.approx([1, 1], abs=1e-5)


def test_gain_norms():
    model = made()
    fill(model, "blocks.1.norm_M.gain", 2.0)
    found = weights.gain_norms(model)
    assert found["norm_M"]["values"] == [4.0, 8.0]  # √d, 2√d
    assert found["norm"] == {"labels": [""], "values": [4.0]}
    with pytest.raises(DoesNotApply, match="no norm"):
        weights.gain_norms(made("ngpt"))


def test_eigen_learning_rates_are_effective_and_without_sign():
    model = made("ngpt", signed_alpha=True)  # stored at s_scale = 1/√d, used at s_init = 0.05
    fill(model, "blocks.1.alpha_M.stored", -0.5)
    found = weights.eigen_learning_rates(model)
    assert found["alpha_A"]["means"] == pytest.approx([0.05, 0.05])
    assert found["alpha_M"]["means"] == pytest.approx([0.05, 0.5 * 0.05 * 4])
    fixed = made("ngpt", alpha=ScaleConfig("fixed", init=0.2))
    assert weights.eigen_learning_rates(fixed)["alpha_A"]["means"] == pytest.approx([0.2, 0.2])
    with pytest.raises(DoesNotApply, match="not interpolated"):
        weights.eigen_learning_rates(made())


def test_learned_scales_are_effective_values():
    model = made("ngpt")
    fill(model, "blocks.0.mlp.s_u.stored", 3.0)
    fill(model, "blocks.0.attention.s_qk.stored", torch.linspace(0, 0.25, D).view(HEADS, 1, D_K))
    found = weights.learned_scales(model)
    assert found["s_u"]["means"] == [3.0, 1.0]
    assert found["s_z"]["means"] == pytest.approx([1.0])
    assert found["s_qk"]["means"][0] == pytest.approx(0.125 * 4)
    assert found["s_qk"]["quantiles"][0][-1] == pytest.approx(1.0)
    assert set(found) == {"alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z"}
    assert {"LN_f", "LN_a", "gamma"} <= set(weights.learned_scales(made("normformer")))


def test_lambda_by_depth():
    model = made("normformer", res_scale=True)
    fill(model, "blocks.1.lambda_.gain", torch.linspace(0, 1, D))
    found = weights.lambda_by_depth(model)
    assert found == {"λ": {"labels": ["0.5", "1"], "values": [1.0, 0.5]}}
    with pytest.raises(DoesNotApply, match="res_scale"):
        weights.lambda_by_depth(made("normformer"))


def test_padding_counts_for_nothing():
    model, given = made(), batch(time=6)
    targets = given.targets.clone()
    targets[:, 4:] = IGNORED
    padded = states.input_norms(trace(model, Batch(given.inputs, targets)))
    short = Batch(given.inputs[:, :4], given.targets[:, :4])
    alone = states.input_norms(trace(model, short))
    assert padded["h"]["values"] == pytest.approx(alone["h"]["values"], rel=1e-5)
    assert padded["h"]["values"] != states.input_norms(trace(model, given))["h"]["values"]


class Turning(nn.Module):
    """A sublayer that answers h, scaled and rotated by a known angle within pairs of entries."""

    bidirectional = True

    def __init__(self, degrees, longer):
        super().__init__()
        self.turn, self.longer = math.radians(degrees), longer

    def forward(self, h, *_):
        a, b = h.chunk(2, dim=-1)
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        return self.longer * torch.cat([cos * a - sin * b, sin * a + cos * b], dim=-1) - h


def test_input_norms_and_angles_of_known_turns():
    model = made()
    fill(model, "E_in.weight", torch.nn.functional.normalize(torch.randn(V, D), dim=1))
    for block in model.blocks:
        block.norm_A, block.norm_M = nn.Identity(), nn.Identity()  # h + (R h − h) = R h
    model.blocks[0].attention, model.blocks[0].mlp = Turning(30, 2.0), Turning(10, 1.0)
    model.blocks[1].attention, model.blocks[1].mlp = Turning(1e-3, 1.0), Turning(90, 0.5)
    found = trace(model, batch(), deep=False)
    assert states.input_norms(found)["h"]["values"] == pytest.approx([1, 2], rel=1e-5)
    angles = states.sublayer_angles(found)
    assert angles["attention"]["values"] == pytest.approx([30, 1e-3], rel=1e-2)
    assert angles["mlp"]["values"] == pytest.approx([10, 90], rel=1e-4)


def test_gates_of_known_vectors():
    model = made("ngpt", residual="gated")
    h = model.E_in.weight[batch().inputs]
    fill(model, "blocks.0.w_A.stored", 3.0)
    found = states.gates(model, trace(model, batch(), deep=False))
    opened = 2 / (1 + torch.exp(-3 * h.sum(-1)))
    assert found["attention"]["means"] == pytest.approx([opened.mean().item(), 1.0], rel=1e-5)
    assert found["attention"]["quantiles"][0][-1] == pytest.approx(opened.max().item(), rel=1e-5)
    assert found["mlp"]["means"] == [1.0, 1.0]

    model = made("gpt", gated=True)
    x = model.blocks[0].norm_A(model.E_in.weight[batch().inputs])
    fill(model, "blocks.0.w_A.stored", 3.0)
    found = states.gates(model, trace(model, batch(), deep=False))
    opened = 2 / (1 + torch.exp(-3 * x.sum(-1)))
    assert found["attention"]["means"] == pytest.approx([opened.mean().item(), 1.0], rel=1e-5)
    with pytest.raises(DoesNotApply, match="no sublayer has a gate"):
        states.gates(made("ngpt"), trace(made("ngpt"), batch(), deep=False))


def test_attention_that_looks_at_all_keys_alike_has_the_entropy_of_uniform_weights():
    model, time = made(), 6
    fill(model, "blocks.0.attention.W_q.weight", 0.0)
    found = states.attention_entropy(trace(model, batch(time=time)))
    uniform = sum(math.log(n) for n in range(1, time + 1)) / time
    assert found["attention if uniform"]["means"] == pytest.approx([uniform] * 2, rel=1e-5)
    assert found["attention"]["means"][0] == pytest.approx(uniform, rel=1e-5)
    assert found["attention"]["means"][1] < found["attention if uniform"]["means"][1]


def test_attention_that_looks_at_one_key_has_no_entropy():
    # Without RoPE, and with q = k = a huge multiple of orthogonal embeddings: each sees itself.
    model = made(rotary_fraction=0.0)
    one_hot = torch.eye(D).repeat(3, 1)[:V]
    fill(model, "E_in.weight", one_hot)
    both = torch.cat([torch.eye(D)[:D_K], torch.eye(D)[:D_K]])
    for name in ("W_q", "W_k"):
        fill(model, f"blocks.0.attention.{name}.weight", 100 * both)
    tokens = torch.arange(6).repeat(2, 1)
    found = states.attention_entropy(trace(model, Batch(tokens, tokens)))
    assert found["attention"]["means"][0] == pytest.approx(0, abs=1e-6)


def test_decay_and_states_of_recurrent_mixers():
    model, given = made(mixers="gdn attention"), batch()
    fill(model, "blocks.0.attention.W_a.weight", 0.0)
    fill(model, "blocks.0.attention.dt_bias.value", 0.0)  # softplus(0) = ln 2
    fill(model, "blocks.0.attention.A_log.value", torch.tensor([1.0, 3.0]).log())
    found = trace(model, given)
    kept = states.decay_rates(found)["kept"]
    assert kept["labels"] == ["0"]
    assert kept["quantiles"][0][0::6] == pytest.approx([1 / 8, 1 / 2])
    cache = model.new_cache(2, 6)
    model(given.inputs, cache)
    lengths = cache.layers[0].mixer.S.flatten(2).norm(dim=-1)
    assert states.recurrent_states(found)["state"]["means"] == [
        pytest.approx(float(lengths.mean()))
    ]
    with pytest.raises(DoesNotApply, match="no layer has a recurrent mixer"):
        states.decay_rates(trace(made(), given))
    with pytest.raises(DoesNotApply, match="no layer has attention"):
        states.attention_entropy(trace(made(mixers="gdn"), given))


def test_state_rank_of_states_along_known_directions():
    assert states.rank_share(torch.eye(D).repeat(3, 1)) == pytest.approx(1)
    assert states.rank_share(torch.ones(2 * D, D)) == pytest.approx(1 / D)


def test_dead_units_are_counted():
    model = made()
    fill(model, "blocks.0.mlp.W_u.weight", torch.randn(D_FF, D))
    model.get_parameter("blocks.0.mlp.W_u.weight")[:16] = 0.0
    found = states.dead_units(trace(model, batch()))
    assert found["dead"] == {"labels": ["0", "1"], "values": [16 / D_FF, 0.0]}
    normed = made("normformer", activation="relu2")
    bias = normed.get_parameter("blocks.1.mlp.W_1.bias")
    bias.fill_(1.0)
    bias[:8] = -1e3  # ReLU² is 0; LN_f behind it adds something to all
    found = states.dead_units(trace(normed, batch()))
    assert found["dead"]["values"][1] == pytest.approx(8 / D_FF)


def test_logit_lens_ends_with_the_loss_and_shows_layers_that_do_nothing():
    model, given = made("rezero"), batch()  # a = 0: every layer leaves h as it is
    found = states.logit_lens(model, given, trace(model, given, deep=False))["loss"]
    loss = float(model.loss(given.inputs, given.targets))
    assert found["labels"] == ["in", "0", "1"]
    assert found["values"] == pytest.approx([loss] * 3, rel=1e-5)
    gpt = made()
    fill(gpt, "norm.gain", torch.linspace(0, 3, D))  # the head reads what the last norm made
    ends = states.logit_lens(gpt, given, trace(gpt, given, deep=False))["loss"]["values"][-1]
    assert ends == pytest.approx(float(gpt.loss(given.inputs, given.targets)), rel=1e-5)
    gpt.head().weight.zero_()
    found = states.logit_lens(gpt, given, trace(gpt, given, deep=False))["loss"]
    assert found["values"] == pytest.approx([math.log(V)] * 3, rel=1e-5)


def test_gradients_are_those_of_backward():
    model, given = build("gpt", **SMALL), batch()
    found = updates.gradients_of(model, given)
    loss = model.loss(given.inputs, given.targets)
    loss.backward()
    assert found.loss == pytest.approx(float(loss.detach()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found.by_name[name], parameter.grad)


def test_gradient_norms_and_the_second_matrix_s():
    model = made("normformer")
    gradients = {name: torch.full_like(p, -0.5) for name, p in model.named_parameters()}
    found = updates.second_fc_gradients(model, gradients)
    assert found == {"W_2": {"labels": ["0", "1"], "values": [D * D_FF / 2] * 2}}
    assert updates.gradient_norms(model, gradients)["W_q"]["values"] == [D / 2] * 2


def test_gradient_ratio_is_over_each_run_s_loss_and_meets_by_place():
    model, base = made("ngpt"), made("angpt")
    ours = {name: torch.full_like(p, 6.0) for name, p in model.named_parameters()}
    theirs = {name: torch.full_like(p, 1.0) for name, p in base.named_parameters()}
    found = updates.gradient_ratio(
        model, updates.Gradients(ours, 3.0), base, updates.Gradients(theirs, 2.0)
    )
    assert {m.name for m in matrices_of(model)} == set(found)
    assert all(series["values"] == [4.0, 4.0] for series in found.values())


def test_mean_gradient_ratio_is_of_the_means_over_the_steps_of_both():
    model, base = made("ngpt"), made("angpt")

    def record(of, norms: dict[int, float], loss: float) -> updates.Recorded:
        points = {
            s: layers((m.name, m.layer, n) for m in matrices_of(of)) for s, n in norms.items()
        }
        return updates.Recorded(dict.fromkeys(norms, loss), {"gradient_norms": points})

    ours = record(model, {1: 100.0, 2: 6.0, 3: 12.0, 5: 100.0}, 3.0)
    theirs = record(base, {2: 2.0, 3: 4.0, 4: 100.0}, 2.0)
    found = updates.mean_gradient_ratio(model, ours, base, theirs, after=1, last=4)
    assert {m.name for m in matrices_of(model)} == set(found)
    assert all(series["values"] == [2.0, 2.0] for series in found.values())  # (2 + 4)/(1 + 2)
    with pytest.raises(DoesNotApply, match="no step in common"):
        updates.mean_gradient_ratio(model, ours, base, theirs, after=3, last=5)


def test_moment_variance_and_its_share_of_the_whole_training():
    model = made()
    moments = {
        name: torch.tensor([-2.0, 2.0]).repeat(p.numel() // 2).view_as(p)
        for name, p in model.named_parameters()
        if name.endswith("W_q.weight")
    }
    found = updates.moment_variance(model, moments)
    assert found == {"W_q": {"labels": ["0", "1"], "values": [4.0, 4.0]}}
    history = [layers([("W", "0", v), ("W", "1", 2.0)]) for v in (1.0, 3.0)]
    shares = updates.relative_variance(history)
    assert [values["W"]["values"] for values in shares] == [[0.25, 0.5], [0.75, 0.5]]
    with pytest.raises(DoesNotApply, match="no first moment"):
        updates.moment_variance(model, {})


@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_angular_updates_of_a_known_turn(name):
    model = made(name)
    before = {key: p.clone() for key, p in model.named_parameters()}
    turn = math.radians(0.02)
    for key in ("attention.W_q", "attention.W_o"):
        weight = model.get_parameter(f"blocks.1.{key}.weight")
        dim = 0 if (name, key) == ("ngpt", "attention.W_o") else 1  # its columns are on the sphere
        a, b = weight.double().chunk(2, dim)
        cos, sin = math.cos(turn), math.sin(turn)
        scale = torch.linspace(1, 9, weight.shape[1 - dim]).unsqueeze(dim)  # turns no vector
        weight.copy_(scale * torch.cat([cos * a - sin * b, sin * a + cos * b], dim))
    found = updates.angular_updates(model, before, dict(model.named_parameters()), steps=4)
    for series in ("W_q", "W_o"):
        assert found[series]["values"] == pytest.approx([0, 0.005], rel=1e-3)
    assert found["E_in"] == {"labels": [""], "values": [0.0]}


def test_loads_of_experts():
    model, given = made(n_experts=4), batch()
    for block in model.blocks:  # all tokens go to the first and the last
        block.mlp.router.expert_bias.copy_(torch.tensor([2.0, 0.0, 0.0, 2.0]))
    found = trace(model, given)
    assert states.expert_loads(found)["load"]["quantiles"][0][0::6] == [0.0, 2.0]
    assert states.max_violation(found)["MaxVio"] == {"labels": ["0", "1"], "values": [1.0, 1.0]}
    shapes = {m.name: m.by_head().shape for m in matrices_of(model) if m.layer == "0"}
    assert shapes["experts W_u"] == shapes["experts W_oMLP"] == (4, D_FF, D)
    assert shapes["shared W_u"] == (1, D_FF, D)
    before = {key: p.clone() for key, p in model.named_parameters()}
    found = updates.angular_updates(model, before, before)
    assert all(series["labels"] in (["0", "1"], [""]) for series in found.values())
    assert {"experts W_u", "shared W_u", "W_q"} <= found.keys()
    assert {"experts s_u", "shared s_u"} <= weights.learned_scales(made("ngpt", n_experts=4)).keys()
    with pytest.raises(DoesNotApply, match="no layer has experts"):
        states.expert_loads(trace(made(), given))
