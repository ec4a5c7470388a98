"""The compiled decoder gives the eager logits; a token is drawn as its distribution says."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from unitsphere.errors import UserError
from unitsphere.inference import decode
from unitsphere.inference.decode import check_sampling, kept, penalize, sample
from unitsphere.inference.generate import generate
from unitsphere.models.registry import ARCHITECTURES, build

SIZES = {"vocab_size": 61, "d_model": 32, "n_layers": 1, "n_heads": 4}
PROMPTS = [[5, 9, 2, 40, 8, 3, 3], [7], [11, 12, 60, 1]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Graphs as the compiler gets them, run without its slow last part."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    decode.compiled_step.cache_clear()
    torch.compiler.reset()
    yield
    decode.compiled_step.cache_clear()
    torch.compiler.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_compiled_texts_are_the_eager_ones(name):
    model = build(name, seed=3, **SIZES).double()
    settings = {"temperature": 1.0, "top_k": 20, "seed": [4, 9, 1]}
    expected = generate(model, PROMPTS, 12, **settings)
    assert generate(model, PROMPTS, 12, compile=True, **settings) == expected


@pytest.mark.parametrize("changes", [{"window": 4}, {"n_kv_heads": 2}, {"tied": True}])
def test_so_are_those_of_windows_and_grouped_keys(changes):
    model = build("ngpt", seed=3, **SIZES, **changes).double()
    assert generate(model, PROMPTS, 12, compile=True) == generate(model, PROMPTS, 12)


@pytest.mark.parametrize("switch", [{"token_shift": True}, {"bigram_rows": 50}])
@pytest.mark.parametrize("name", ["gpt", "ngpt", "angpt"])
def test_a_token_shift_and_bigrams_remember_the_last_token_of_each_row(name, switch):
    model = build(name, seed=3, **switch, **SIZES).double()
    with torch.no_grad():
        for parameter in (model.shift or model.bigrams).parameters():
            parameter.add_(0.5)
    settings = {"temperature": 1.0, "seed": [4, 9, 1]}
    expected = generate(model, PROMPTS, 12, **settings)
    assert generate(model, PROMPTS, 12, compile=True, **settings) == expected
    tokens = torch.tensor([[5, 9, 2, 40, 8], [7, 1, 33, 2, 60]])
    cache = model.new_cache(2, 5)
    model(tokens[:, :2], cache=cache)
    model(tokens[:, 2:3], cache=cache)
    cache.reorder(torch.tensor([1, 0]))
    found = model(tokens[[1, 0], 3:], cache=cache)
    torch.testing.assert_close(found, model(tokens)[[1, 0], 3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt", "ngpt", "angpt"])
def test_a_key_offset_reads_the_key_before_from_the_cache(name):
    model = build(name, seed=3, key_offset=True, rotary_fraction=0.5, **SIZES).double()
    settings = {"temperature": 1.0, "seed": [4, 9, 1]}
    expected = generate(model, PROMPTS, 12, **settings)
    assert generate(model, PROMPTS, 12, compile=True, **settings) == expected
    each = [
        generate(model, [p], 12, **settings | {"seed": s})[0]
        for p, s in zip(PROMPTS, [4, 9, 1], strict=True)
    ]
    assert each == expected
    tokens = torch.tensor([[5, 9, 2, 40, 8], [7, 1, 33, 2, 60]])
    cache = model.new_cache(2, 5)
    model(tokens[:, :2], cache=cache)
    model(tokens[:, 2:3], cache=cache)
    cache.reorder(torch.tensor([1, 0]))
    found = model(tokens[[1, 0], 3:], cache=cache)
    torch.testing.assert_close(found, model(tokens)[[1, 0], 3:], rtol=0, atol=1e-12)


def test_a_token_compiles_nothing_again_and_texts_of_other_lengths_share_the_graph():
    model = build("ngpt", **(SIZES | {"n_layers": 2}))
    before = graphs()
    generate(model, PROMPTS, 3, compile=True)
    assert graphs() == before + 1
    generate(model, PROMPTS, 50, compile=True)
    generate(model, [prompt * 2 for prompt in PROMPTS], 20, compile=True)
    assert graphs() == before + 1
    generate(model, PROMPTS, 58, compile=True)  # 65 tokens: longer buffers
    assert graphs() == before + 2


def test_many_shapes_are_no_error():
    """torch refuses the ninth by default; here the third."""
    model = build("ngpt", **SIZES)
    with torch._dynamo.config.patch(recompile_limit=2):
        for rows in (1, 2, 3):
            generate(model, PROMPTS[:1] * rows, 2, compile=True)


def test_buffers_have_the_next_power_of_two():
    assert [decode.rounded(n) for n in (1, 64, 65, 128, 1000)] == [64, 64, 128, 128, 1024]


@pytest.mark.parametrize("compile", [False, True])
def test_a_text_ends_where_learned_positions_do(compile):
    """It ended in an error, and what was written was lost."""
    model = build("normformer", **SIZES, positions="learned", max_positions=16)
    (row,) = generate(model, [[1, 2]], 40, compile=compile)
    assert [row[:9]] == generate(model, [[1, 2]], 9)
    assert len(row) == 15  # the last is drawn, and not read
    with pytest.raises(UserError, match="17 tokens, but the model has learned positions for 16"):
        generate(model, [[1] * 17], 1, compile=compile)


def test_a_seed_for_each_prompt():
    model = build("ngpt", **SIZES)
    draw = partial(generate, model, max_tokens=8, temperature=1.0)
    together = draw(PROMPTS, seed=[7, 3, 7])
    alone = [
        draw([prompt], seed=[seed])[0] for prompt, seed in zip(PROMPTS, [7, 3, 7], strict=True)
    ]
    assert together == alone
    assert draw([PROMPTS[0]] * 3, seed=[5, 6, 5])[0] == draw([PROMPTS[0]] * 3, seed=5)[0]
    with pytest.raises(UserError, match="2 seeds for 3 prompts"):
        draw(PROMPTS, seed=[1, 2])


def brute_force(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> list[float]:
    """The distribution that a row's token must follow, one token at a time."""
    weights = torch.tensor(logits, dtype=torch.float64).div(temperature).softmax(0).tolist()
    ranked = sorted(range(len(weights)), key=lambda token: -weights[token])
    ranked = ranked[:top_k]
    if top_p is not None:
        total, taken = sum(weights[token] for token in ranked), 0.0
        nucleus = []
        for token in ranked:
            if taken >= top_p * total:
                break
            nucleus.append(token)
            taken += weights[token]
        ranked = nucleus
    total = sum(weights[token] for token in ranked)
    return [weights[t] / total if t in ranked else 0.0 for t in range(len(weights))]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (1, None), (3, None), (None, 0.3), (None, 0.9), (4, 0.8)]
)
def test_samples_follow_the_truncated_distribution(temperature, top_k, top_p):
    logits = torch.randn(9, generator=torch.Generator().manual_seed(1))
    expected = torch.tensor(brute_force(logits.tolist(), temperature, top_k, top_p))
    # Evenly spread numbers: shares of the tokens are exact to the spacing, without sampling noise.
    n = 20_000
    uniform = (torch.arange(n) + 0.5) / n
    tokens = sample(logits.expand(n, -1), uniform, temperature, top_k, top_p)
    shares = torch.bincount(tokens, minlength=9) / n
    assert torch.allclose(shares, expected.float(), atol=2 / n + 1e-5)
    assert set(tokens.tolist()) <= set(expected.nonzero().flatten().tolist())


def test_temperature_zero_is_greedy():
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(2))
    assert torch.equal(sample(logits, torch.rand(5), 0.0), logits.argmax(-1))


def test_a_very_small_temperature_is_greedy_and_finite():
    logits = 50 * torch.randn(5, 11, generator=torch.Generator().manual_seed(3))
    for temperature in (2e-4, 1e-6, 1e-46):
        drawn = sample(logits, torch.full((5,), 0.999), temperature)
        assert torch.equal(drawn, logits.argmax(-1))


def test_the_largest_uniform_number_never_leaves_the_kept_tokens():
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(4))
    almost_one = torch.full((64,), 1 - 2**-24)
    tokens = sample(logits, almost_one, 1.0, top_k=5)
    allowed = logits.topk(5).indices
    assert (tokens[:, None] == allowed).any(-1).all()


def test_top_k_larger_than_the_vocabulary_keeps_everything():
    assert kept(torch.full((1, 4), 0.25), 10, None).all()


def test_the_likeliest_token_always_stays():
    assert kept(torch.tensor([[0.7, 0.2, 0.1]]), None, 1e-9).tolist() == [[True, False, False]]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ((-1.0, None, None), "temperature"),
        ((float("nan"), None, None), "temperature"),
        ((1.0, 0, None), "top_k"),
        ((1.0, None, 0.0), "top_p"),
        ((1.0, None, 1.5), "top_p"),
    ],
)
def test_settings_out_of_range_are_refused(settings, word):
    with pytest.raises(UserError, match=word):
        check_sampling(*settings)


def test_min_p_keeps_what_is_that_share_as_likely_as_the_likeliest():
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.97, 0.01, 0.01, 0.01]])
    keep = kept(probabilities, None, None, min_p=0.3)
    assert keep.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert kept(probabilities, None, None, min_p=0.0).all()
    assert kept(probabilities, None, None, min_p=1.0).sum(-1).tolist() == [1, 1]


def test_a_penalty_divides_positive_logits_and_multiplies_negative_ones():
    logits = torch.tensor([[2.0, -2.0, 3.0]])
    seen = torch.tensor([[True, True, False]])
    assert penalize(logits, seen, 2.0).tolist() == [[1.0, -4.0, 3.0]]
    assert penalize(logits, seen, 1.0) is logits


@pytest.mark.parametrize(
    "settings",
    [{"min_p": 1.1}, {"min_p": -0.1}, {"repetition_penalty": 0.0}],
)
def test_settings_that_no_distribution_can_follow_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        check_sampling(1.0, None, None, **settings)
