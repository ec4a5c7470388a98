"""What cross-attention is in each architecture: its own residual rule, norms and scales."""

import math

import pytest
import torch
from torch import Tensor

from reference import angpt, basics, gpt, ngpt, normformer
from reference.architectures import (
    D_F,
    REAL,
    SOURCE,
    TOKENS,
    TRANSLATORS,
    Case,
    D,
    V,
    close,
    count,
    differ,
)
from reference.basics import Scale, Tensors

ONE = torch.tensor(1.0, dtype=torch.float64)


def states(case: Case, tensors: Tensors, source: Tensor = SOURCE) -> list[Tensor]:
    """h after the embedding and after each sublayer of the decoder."""
    memory = case.oracle.encode(tensors, case.settings, source, REAL)
    where = {"memory": memory, "source_mask": REAL}
    return case.oracle.hidden_states(tensors, case.settings, TOKENS, **where)


def changed(tensors: Tensors, ending: str, change: object) -> Tensors:
    """`tensors` with `change` applied to each whose name ends so."""
    names = [name for name in tensors if name.endswith(ending)]
    assert names, ending
    return tensors | {name: change(tensors[name]) for name in names}  # type: ignore[operator]


@pytest.mark.parametrize("residual", ["lerp", "slerp", "riemannian"])
def test_ngpt_stays_on_the_sphere(residual: str) -> None:
    case = TRANSLATORS["ngpt"].but(residual=residual)
    tensors = case.tensors()
    memory = case.oracle.encode(tensors, case.settings, SOURCE)
    for h in (memory, *states(case, tensors)):
        close(h.square().sum(-1), torch.ones(h.shape[:2], dtype=torch.float64))


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_alpha_x_one_goes_to_the_proposal_and_zero_stays(name: str) -> None:
    case = TRANSLATORS[name].but(alpha=Scale("vector", 1.0, 1.0))
    tensors = case.tensors()
    still = states(case, changed(tensors, "alpha_X", torch.zeros_like))
    close(still[2], still[1])
    close(still[5], still[4])
    gone = states(case, changed(tensors, "alpha_X", torch.ones_like))
    close(gone[2].square().sum(-1), torch.ones(2, 5, dtype=torch.float64))
    # One source token, repeated: its value is all that any query can read.
    repeated = SOURCE[:, :1].expand(2, 4)
    alone = states(case, changed(tensors, "alpha_X", torch.ones_like), repeated)
    close(alone[2], alone[2][:, :1].expand_as(alone[2]))


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_lengths_of_cross_attention_s_output_and_keys_do_not_count(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    want = case.translate(tensors, SOURCE, REAL)
    output = "cross.W_o" if name == "ngpt" else "cross.W_p"
    for matrix in (output, "cross.W_v", "cross.W_q", "cross.W_k"):
        longer = changed(tensors, matrix, lambda w: 7 * w)
        close(case.translate(longer, SOURCE, REAL), want)


def test_ngpt_s_qk_of_cross_attention_is_its_own_and_acts_squared() -> None:
    fixed = TRANSLATORS["ngpt"].but(s_qk=Scale("scalar", 1.0, 1.0))
    tensors = changed(fixed.tensors(), "s_qk", torch.ones_like)
    p = basics.of_layer(tensors, 0)
    x = torch.randn(2, 3, D, dtype=torch.float64)
    see, where = torch.ones(2, 3, 3, dtype=torch.bool), torch.zeros(2, 3)
    sharp = fixed.but(softmax_factor=1.69 * math.sqrt(D / 2)).settings
    own = basics.under(p, "cross")
    scaled = own | {"s_qk": torch.tensor(1.3, dtype=torch.float64)}
    got = ngpt.attention(x, scaled, fixed.settings, where, see, x)
    close(got, ngpt.attention(x, own, sharp, where, see, x))
    base = fixed.translate(tensors)
    for name in ("layers.0.s_qk", "layers.0.cross.s_qk", "encoder.0.s_qk"):
        assert differ(fixed.translate(tensors | {name: 1.3 * ONE}), base)


def test_ngpt_constrains_the_matrices_of_both_stacks() -> None:
    shapes = ngpt.shapes(TRANSLATORS["ngpt"].settings, V, D, D_F)
    for name, w in ngpt.normalized(basics.random_tensors(shapes)).items():
        if w.ndim == 2 and not name.endswith("s_qk"):
            axis = 0 if name.endswith(("W_o", "W_oMLP")) else 1
            length = w.square().sum(axis)
            close(length, torch.ones_like(length))


def test_angpt_counts_the_source_tokens_that_a_row_sees() -> None:
    case = TRANSLATORS["angpt-row"].but(n_heads=1)
    eye, x = torch.eye(4, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.float64)
    p = {"W_q": eye, "W_k": eye, "W_v": eye, "W_p": eye, "g": torch.ones(1).double()}
    memory = torch.ones(2, 4, 4, dtype=torch.float64)
    see = basics.visible_memory(TOKENS[:, :3], memory, REAL)
    got = angpt.attention(x, p, case.settings, torch.zeros(2, 3), see, memory)
    want = torch.tensor([3.0, 2.0]).double().sqrt()
    close(got[:, :, 0], want[:, None].expand(2, 3))


def test_gpt_plus_g_of_cross_attention_is_its_own_and_zero_averages() -> None:
    case = TRANSLATORS["gpt-plus"]
    tensors = changed(case.tensors(), "cross.g", torch.zeros_like)
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    p = basics.under(basics.of_layer(tensors, 0), "cross")
    x = torch.randn(2, 5, D, dtype=torch.float64)
    see = basics.visible_memory(TOKENS, memory, REAL)
    got = gpt.attention(x, p, case.settings, torch.zeros(2, 5), see, memory)
    share = REAL.double() / REAL.sum(-1, keepdim=True)
    mean = (share[:, :, None] * memory).sum(1, keepdim=True)
    close(got, (mean @ p["W_v"].T @ p["W_o"].T).expand(2, 5, D))


@pytest.mark.parametrize("name", ["gpt", "gpt-plus", "lnscaling"])
def test_the_memory_of_gpt_has_mean_square_one_and_its_gain_folds(name: str) -> None:
    case = TRANSLATORS[name].but(eps=0.0)
    tensors = case.tensors()
    ones = changed(tensors, "gain_encoder", torch.ones_like)
    memory = case.oracle.encode(ones, case.settings, SOURCE, REAL)
    close(memory.square().mean(-1), torch.ones(2, 4, dtype=torch.float64))
    folded = ones
    for matrix in ("cross.W_k", "cross.W_v"):
        folded = changed(folded, matrix, lambda w: w * tensors["gain_encoder"])
    close(case.translate(folded, SOURCE, REAL), case.translate(tensors, SOURCE, REAL))


@pytest.mark.parametrize("name", ["gpt", "lnscaling"])
def test_gain_x_folds_into_the_queries_of_cross_attention(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    folded = changed(tensors, "gain_X", torch.ones_like)
    for i in range(2):
        key = f"layers.{i}.cross.W_q"
        folded[key] = tensors[key] * tensors[f"layers.{i}.gain_X"]
    close(case.translate(folded, SOURCE, REAL), case.translate(tensors, SOURCE, REAL))


def test_lnscaling_is_gpt_with_gains_divided_by_the_root_of_the_layer() -> None:
    case, plain = TRANSLATORS["lnscaling"], TRANSLATORS["gpt"]
    tensors = case.tensors()
    folded = dict(tensors)
    for name in ("encoder.1.gain_A", "encoder.1.gain_M"):
        folded[name] = tensors[name] / math.sqrt(2)
    for name in ("layers.1.gain_A", "layers.1.gain_X", "layers.1.gain_M"):
        folded[name] = tensors[name] / math.sqrt(2)
    got = case.translate(tensors, SOURCE, REAL)
    close(plain.translate(folded, SOURCE, REAL), got)
    assert differ(plain.translate(tensors, SOURCE, REAL), got)


def test_rezero_starts_as_the_identity_and_a_folds_into_the_outputs() -> None:
    case = TRANSLATORS["rezero"]
    tensors = case.tensors()
    asleep = {n: torch.zeros_like(t) if n.endswith(".a") else t for n, t in tensors.items()}
    memory = case.oracle.encode(asleep, case.settings, SOURCE, REAL)
    assert torch.equal(memory, tensors["E_in"][SOURCE])
    assert all(torch.equal(h, tensors["E_in"][TOKENS]) for h in states(case, asleep))
    folded = changed(tensors, ".a", torch.ones_like)
    for stack, outputs in (
        ("layers", ("W_o", "cross.W_o", "W_oMLP")),
        ("encoder", ("W_o", "W_oMLP")),
    ):
        for i in range(2):
            for output in outputs:
                key = f"{stack}.{i}.{output}"
                folded[key] = tensors[key] * tensors[f"{stack}.{i}.a"]
    close(case.translate(folded, SOURCE, REAL), case.translate(tensors, SOURCE, REAL))


def test_dyt_has_a_beta_for_each_norm_of_both_stacks() -> None:
    case, plain = TRANSLATORS["dyt"], TRANSLATORS["dyt-no-bias"]
    tensors = case.tensors()
    betas = {name for name in tensors if name.endswith("beta")}
    assert len(betas) == 2 * 2 + 3 * 2 + 2
    zeros = {name: torch.zeros_like(tensors[name]) for name in betas}
    without = plain.translate(tensors, SOURCE, REAL)
    close(case.translate(tensors | zeros, SOURCE, REAL), without)
    for name in betas:
        got = case.translate(tensors | zeros | {name: tensors[name]}, SOURCE, REAL)
        assert differ(got, without), name


def test_dyt_saturates_in_the_memory() -> None:
    case = TRANSLATORS["dyt"]
    tensors = case.tensors() | {"embed_scale": torch.tensor(1e9).double()}
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    size = tensors["DyT_encoder.gamma"].abs().expand_as(memory)
    close((memory - tensors["DyT_encoder.beta"]).abs(), size)


def test_dyt_of_cross_attention_feeds_its_queries_alone() -> None:
    case = TRANSLATORS["dyt"]
    tensors = changed(case.tensors(), "DyT_X.gamma", torch.zeros_like)
    tensors = changed(tensors, "DyT_X.beta", torch.zeros_like)
    p = basics.under(basics.of_layer(tensors, 0), "cross")
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    mean = (REAL[:, :, None] * memory).sum(1, keepdim=True) / REAL.sum(-1)[:, None, None]
    h = states(case, tensors)
    close(h[2] - h[1], (mean @ p["W_v"].T @ p["W_o"].T).expand_as(h[1]))


def test_normformer_head_scale_folds_into_the_columns_of_cross_attention_s_output() -> None:
    case, plain = (TRANSLATORS["pre-ln"].but(head_scale=on) for on in (True, False))
    tensors = case.tensors()
    folded = dict(tensors)
    for place in ("layers.0.", "layers.1.", "layers.0.cross.", "layers.1.cross.", "encoder.0."):
        gamma = tensors[f"{place}gamma"].repeat_interleave(D // 2)
        folded[f"{place}W_O"] = tensors[f"{place}W_O"] * gamma
    gamma = tensors["encoder.1.gamma"].repeat_interleave(D // 2)
    folded["encoder.1.W_O"] = tensors["encoder.1.W_O"] * gamma
    close(plain.translate(folded, SOURCE, REAL), case.translate(tensors, SOURCE, REAL))


@pytest.mark.parametrize("qkv_ln", ["width", "head"])
def test_normformer_norms_of_cross_attention_forget_lengths(qkv_ln: str) -> None:
    case = TRANSLATORS["normformer"].but(qkv_ln=qkv_ln, eps=0.0)
    tensors = case.tensors()
    want = case.translate(tensors, SOURCE, REAL)
    for letter in "qkvO":
        longer = changed(tensors, f"cross.W_{letter}", lambda w: 7 * w)
        longer = changed(longer, f"cross.b_{letter}", lambda b: 7 * b)
        close(case.translate(longer, SOURCE, REAL), want)


def test_normformer_lambda_scales_the_feed_forward_residual_alone() -> None:
    case = TRANSLATORS["normformer"]
    tensors = changed(case.tensors(), "lambda", torch.zeros_like)
    for name in ("W_2", "b_2"):
        tensors = changed(tensors, name, torch.zeros_like)
    h = states(case, tensors)
    assert torch.equal(h[3], torch.zeros_like(h[3]))
    assert differ(h[2], h[1])


def test_normformer_normalises_the_memory_before_the_head_only_with_pre_ln() -> None:
    plain = {"gain": torch.ones_like, "bias": torch.zeros_like}
    for name, norm in (("pre-ln", "LN_encoder"), ("post-ln", "encoder.1.LN_2")):
        case = TRANSLATORS[name].but(eps=0.0)
        tensors = case.tensors()
        assert ("LN_encoder.gain" in tensors) == (name == "pre-ln")
        for part, start in plain.items():
            tensors = changed(tensors, f"{norm}.{part}", start)
        memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
        close(memory.mean(-1), torch.zeros(2, 4, dtype=torch.float64))
        close(memory.square().mean(-1), torch.ones(2, 4, dtype=torch.float64))


def test_post_ln_normalises_after_cross_attention() -> None:
    case = TRANSLATORS["post-ln"].but(eps=0.0)
    tensors = changed(case.tensors(), "LN_X.gain", torch.ones_like)
    tensors = changed(tensors, "LN_X.bias", torch.zeros_like)
    for h in (states(case, tensors)[2], states(case, tensors)[5]):
        close(h.mean(-1), torch.zeros(2, 5, dtype=torch.float64))
        close(h.square().mean(-1), torch.ones(2, 5, dtype=torch.float64))


def test_source_and_target_share_learned_positions() -> None:
    case = TRANSLATORS["pre-ln"].but(positions="learned")
    tensors = case.tensors()
    P = tensors["P"]
    for row, counts in ((0, True), (4, True), (5, False)):  # 4 source tokens, 5 target tokens
        other = P.detach().clone()
        other[row] *= 2
        got = case.translate(tensors | {"P": other})
        assert differ(got, case.translate(tensors)) == counts
    later = normformer.encode(tensors, case.settings, SOURCE, positions=torch.full((2, 4), 8))
    assert differ(later, normformer.encode(tensors, case.settings, SOURCE))


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("gpt", lambda d, H: 5 * d),
        ("gpt-plus", lambda d, H: 5 * d + 3 * H),
        ("ngpt", lambda d, H: (11 + 13) * d),
        ("angpt", lambda d, H: 5 * d + 3 * H),
        ("rezero", lambda d, H: 2),
        ("lnscaling", lambda d, H: 5 * d),
        ("dyt", lambda d, H: 5 * (2 * d + 1)),
    ],
)
def test_parameter_counts(name: str, extra: object) -> None:
    d, L, H, vocabulary = 64, 3, 4, 100
    case = TRANSLATORS[name].but(n_layers=L, n_heads=H)
    if name == "ngpt":
        case = Case(ngpt, ngpt.paper(d, L, H, seq2seq=True))
    final = {"ngpt": vocabulary, "angpt": vocabulary, "rezero": 0, "dyt": 1 + 2 * (2 * d + 1)}
    want = 36 * d * d * L + 2 * vocabulary * d + L * extra(d, H)  # type: ignore[operator]
    assert count(case, vocabulary, d, 4 * d) == want + final.get(name, 2 * d)


def test_normformer_parameter_counts() -> None:
    d, L, H, vocabulary = 64, 3, 4, 100
    case = TRANSLATORS["pre-ln"].but(n_layers=L, n_heads=H)
    attention, forward = 4 * d * d + 4 * d, 8 * d * d + 5 * d
    plain = L * (3 * attention + 2 * forward + 5 * 2 * d) + vocabulary * d + 2 * 2 * d
    assert count(case, vocabulary, d, 4 * d) == plain
    scaled = case.but(post_attn_ln=True, head_scale=True)
    assert count(scaled, vocabulary, d, 4 * d) - plain == L * 3 * (2 * d + H)
    normed = case.but(qkv_ln="width", ffn_ln=True, res_scale=True)
    assert count(normed, vocabulary, d, 4 * d) - plain == L * (3 * 6 * d + 2 * 8 * d + 2 * d)
    post = case.but(norm="post")
    assert count(post, vocabulary, d, 4 * d) == plain - 4 * d
