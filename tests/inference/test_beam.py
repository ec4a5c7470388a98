"""Beam search finds what it should, whatever the beam, the cache and the other sources."""

import itertools
import math

import numpy as np
import pytest
import torch
from fakes import Table
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.data.pairs import source_batch
from unitsphere.errors import UserError
from unitsphere.inference.translate import Hypothesis, beam_search, greedy, length_penalty
from unitsphere.models.registry import ARCHITECTURES, build

SEPARATOR = 0
VOCABULARY = 17
SOURCES = [[3, 4, 5, 6, 7, 8], [9], [1, 2, 10], [16, 16, 16, 16]]


@pytest.fixture(params=sorted(ARCHITECTURES))
def model(request):
    """A small encoder–decoder of each architecture in fp64, with weights that say something."""
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "n_layers": 2, "n_heads": 2}
    model = build(request.param, objective="seq2seq", seed=3, **sizes).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.5 * noise
    return model


def log_probability(model, source: list[int], target: list[int]) -> float:
    """log P of a whole target, from the formula: nothing cached, nothing padded."""
    tokens, mask = source_batch([np.array(source)], SEPARATOR)
    inputs = torch.tensor([[SEPARATOR, *target]])
    with torch.inference_mode():
        logits = model(inputs, memory=model.encode(tokens, mask))[0]
    wanted = torch.tensor([*target, SEPARATOR])
    return float(logits.log_softmax(-1)[range(len(wanted)), wanted].sum())


def table_log_probability(table: Table, source: list[int], target: list[int]) -> float:
    whole, total = [SEPARATOR, *target, SEPARATOR], 0.0
    for end in range(1, len(whole)):
        logits = table.logits([*source, SEPARATOR], whole[:end])
        total += float(logits.log_softmax(-1)[whole[end]])
    return total


def close(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.6, 1.0, 3.0]),
)
def test_a_beam_as_wide_as_the_tree_finds_the_best_target(vocabulary, length, seed, alpha):
    table, source = Table(vocabulary, seed), [1]
    letters = range(1, vocabulary)
    targets = [list(t) for n in range(length + 1) for t in itertools.product(letters, repeat=n)]

    def score(target: list[int]) -> float:
        total = table_log_probability(table, source, target)
        return total / ((5 + len(target) + 1) / 6) ** alpha

    best = max(targets, key=score)
    found = beam_search(table, [source], length, SEPARATOR, vocabulary**length + 1, alpha)[0]
    assert found.tokens == best
    assert found.log_probability == pytest.approx(table_log_probability(table, source, best))


def plain_beam(table: Table, source: list[int], length: int, beam: int, alpha: float) -> list[int]:
    """The search as its module describes it, with lists; nothing is stopped before its time."""
    followed: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for step in range(length + 1):
        options = []
        for total, tokens in followed:
            logits = table.logits([*source, SEPARATOR], [SEPARATOR, *tokens])
            for token, value in enumerate(logits.log_softmax(-1).tolist()):
                options.append((total + value, [*tokens, token]))
        if step == length:
            options = [option for option in options if option[1][-1] == SEPARATOR]
        options = sorted(options, reverse=True)[: 2 * beam]
        for total, tokens in options[:beam]:
            if tokens[-1] == SEPARATOR:
                finished.append((total / length_penalty(len(tokens), alpha), tokens[:-1]))
        followed = [option for option in options if option[1][-1] != SEPARATOR][:beam]
        if len(finished) >= beam:
            break
    return max(finished)[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 7), st.integers(1, 6), st.integers(2, 5), st.integers(0, 10**6))
def test_any_beam_is_the_search_that_is_described(vocabulary, length, beam, seed):
    table = Table(vocabulary, seed)
    found = beam_search(table, [[1]], length, SEPARATOR, beam, alpha=0.6)[0].tokens
    assert found == plain_beam(table, [1], length, beam, 0.6)


def test_a_wider_beam_finds_what_greedy_misses():
    better = 0
    for seed in range(40):
        table = Table(5, seed)
        narrow = greedy(table, [[1]], 6, SEPARATOR)[0].log_probability
        wide = beam_search(table, [[1]], 6, SEPARATOR, 6, alpha=0.0)[0].log_probability
        better += wide > narrow + 1e-9
    assert better > 10


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 1000), st.floats(0, 3))
def test_a_beam_of_one_is_greedy(vocabulary, length, seed, alpha):
    table, sources = Table(vocabulary, seed), [[1], [1, 1], [1, 1, 1]]
    found = beam_search(table, sources, length, SEPARATOR, 1, alpha)
    close(found, greedy(table, sources, length, SEPARATOR))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 1000), st.floats(0, 3))
def test_other_sources_change_nothing(beam, length, seed, alpha):
    table, sources = Table(6, seed), [[1], [1, 1], [2], [3, 1, 4]]
    together = beam_search(table, sources, length, SEPARATOR, beam, alpha)
    alone = [beam_search(table, [s], length, SEPARATOR, beam, alpha)[0] for s in sources]
    assert together == alone


def test_every_architecture_s_beam_of_one_is_greedy(model):
    found = beam_search(model, SOURCES, 9, SEPARATOR, 1)
    close(found, greedy(model, SOURCES, 9, SEPARATOR))
    assert len({tuple(h.tokens) for h in found}) > 1


@pytest.mark.parametrize("beam", [1, 4])
def test_every_architecture_s_probabilities_are_those_without_cache_and_padding(model, beam):
    if beam == 1:
        found = greedy(model, SOURCES, 9, SEPARATOR)
    else:
        found = beam_search(model, SOURCES, 9, SEPARATOR, beam)
    for source, one in zip(SOURCES, found, strict=True):
        expected = log_probability(model, source, one.tokens)
        assert one.log_probability == pytest.approx(expected, abs=1e-6)


def test_greedy_is_the_argmax_of_the_uncached_model(model):
    found = greedy(model, SOURCES, 7, SEPARATOR)
    for source, one in zip(SOURCES, found, strict=True):
        tokens, mask = source_batch([np.array(source)], SEPARATOR)
        target = [SEPARATOR]
        with torch.inference_mode():
            memory = model.encode(tokens, mask)
            while len(target) < 8:
                target.append(int(model(torch.tensor([target]), memory=memory)[0, -1].argmax()))
                if target[-1] == SEPARATOR:
                    target.pop()
                    break
        assert one.tokens == target[1:]


@pytest.mark.parametrize("beam", [None, 1, 3])
def test_every_architecture_does_the_same_for_a_source_in_company(model, beam):
    def search(sources):
        if beam is None:
            return greedy(model, sources, 9, SEPARATOR)
        return beam_search(model, sources, 9, SEPARATOR, beam)

    together = search(SOURCES)
    alone = [search([source])[0] for source in SOURCES]
    assert [h.tokens for h in together] == [h.tokens for h in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-6)
    assert search(SOURCES) == together


def test_a_model_that_never_ends_is_ended():
    class Endless(Table):
        def logits(self, source, prefix):
            return super().logits(source, prefix) - 1e4 * torch.eye(self.vocabulary)[0]

    table = Endless(5)
    for found in (greedy(table, [[1], [2]], 4, 0), beam_search(table, [[1], [2]], 4, 0, 3)):
        assert [len(h.tokens) for h in found] == [4, 4]
        assert all(h.log_probability < -9e3 for h in found)


def test_ids_beyond_the_vocabulary_are_never_written():
    table = Table(40, spread=0.1)
    for found in (
        greedy(table, [[1]], 12, 0, vocab_size=4),
        beam_search(table, [[1]], 12, 0, 3, vocab_size=4),
    ):
        assert set(found[0].tokens) <= {1, 2, 3}


def test_the_length_penalty():
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.0) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(math.sqrt(2))


def test_a_larger_length_penalty_prefers_longer_targets():
    def length(alpha: float) -> int:
        tables = [Table(4, seed) for seed in range(10)]
        return sum(len(beam_search(t, [[1]], 8, SEPARATOR, 8, alpha)[0].tokens) for t in tables)

    assert length(0.0) < length(0.6) < length(9.0)


def test_odd_requests():
    table = Table(4)
    assert beam_search(table, [], 4, 0) == greedy(table, [], 4, 0) == []
    for beam, alpha in ((0, 0.6), (2, -0.1), (2, math.inf), (2, math.nan)):
        with pytest.raises(UserError, match="beam must be 1 or more, and length_penalty"):
            beam_search(table, [[1]], 4, 0, beam, alpha)
    for search in (greedy, beam_search):
        with pytest.raises(UserError, match="max_tokens must be 1 or more"):
            search(table, [[1]], 0, 0)
        with pytest.raises(UserError, match="max_tokens must be at most 1,048,576, not 10,000,000"):
            search(table, [[1]], 10**7, 0)  # memory for all of them is taken at once
    assert beam_search(table, [[]], 4, 0, 2)[0].log_probability < 0
