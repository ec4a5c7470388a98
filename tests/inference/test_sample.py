"""Temperature, top-k and top-p against a brute-force reading of their definitions."""

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.inference.decode import check_sampling, kept, penalize, sample


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
    assert torch.equal(sample(logits, torch.full((5,), 0.999), 1e-6), logits.argmax(-1))


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
