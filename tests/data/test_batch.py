"""A batch taken apart; what a masked model is shown, and what it has to predict."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import stream

from unitsphere.data import IGNORED, Batch, Batches, MaskConfig, Masked
from unitsphere.data.batch import Window, mask_tokens
from unitsphere.errors import UserError


def batch(rows: int = 5) -> Batch:
    tokens = torch.arange(rows * 4).view(rows, 4)
    targets = tokens.clone()
    targets[1:, 0] = IGNORED
    source = torch.arange(rows * 3).view(rows, 3)
    mask, documents = tokens[:, None, None] > 2, (tokens % 3 == 0).cumsum(1)
    return Batch(tokens, targets, source, source % 2 == 0, mask, documents)


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_the_parts_hold_every_row_of_every_tensor_once(rows):
    whole = batch()
    parts = list(whole.split(rows))
    assert sum(len(part) for part in parts) == len(whole) == 5
    assert max(len(part) for part in parts) == min(rows, 5)
    assert sum(part.scored for part in parts) == whole.scored == 16
    for name in ("inputs", "targets", "source", "source_mask", "mask", "documents"):
        together = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(together, getattr(whole, name))


def test_the_model_gets_what_there_is():
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    assert Batch(tokens, tokens).keywords() == {}
    assert set(batch().keywords()) == {"source", "source_mask", "mask", "documents"}


def test_every_tensor_moves():
    moved = batch().to("meta")
    assert {t.device.type for t in (moved.inputs, moved.targets, *moved.keywords().values())} == {
        "meta"
    }


VOCABULARY = 50
MASK = VOCABULARY
PAPERS = MaskConfig()

separators = st.integers(0, VOCABULARY - 1)
seeds = st.integers(0, 2**40)
texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=300).map(np.array)
configs = st.tuples(st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 1)).map(
    lambda shares: MaskConfig(shares[0], shares[1], (1 - shares[1]) * shares[2])
)


def masked(tokens, separator, config=PAPERS, seed=0):
    generator = np.random.default_rng(seed)
    return mask_tokens(tokens, separator, VOCABULARY, config, generator)


@settings(max_examples=200, deadline=None)
@given(texts, separators, configs, seeds)
def test_only_chosen_tokens_change_and_no_separator_is_chosen(tokens, separator, config, seed):
    shown, asked = masked(tokens, separator, config, seed)
    chosen = asked != IGNORED
    assert np.array_equal(shown[~chosen], tokens[~chosen])
    assert np.array_equal(asked[chosen], tokens[chosen])
    assert not np.any(asked == separator)
    assert not np.any(shown[chosen] == separator)
    assert np.all((shown >= 0) & (shown <= MASK))


@settings(max_examples=200, deadline=None)
@given(texts, separators, configs, seeds)
def test_as_many_are_chosen_as_the_fraction_says_up_to_rounding(tokens, separator, config, seed):
    candidates = int((tokens != separator).sum())
    chosen = int((masked(tokens, separator, config, seed)[1] != IGNORED).sum())
    wanted = config.fraction * candidates
    assert min(1, candidates) <= chosen
    assert wanted - 1 <= chosen <= max(wanted + 1, 1)


def within(count: int, total: int, share: float) -> bool:
    """Whether a binomial count lies within five standard deviations, and five more."""
    return abs(count - share * total) <= 5 * (share * (1 - share) * total) ** 0.5 + 5


@settings(max_examples=15, deadline=None)
@given(seeds, separators, configs)
def test_the_shares_are_those_of_the_config(seed, separator, config):
    tokens = np.random.default_rng(seed).integers(VOCABULARY, size=20_000)
    shown, asked = masked(tokens, separator, config, seed)
    chosen = asked != IGNORED
    total = int(chosen.sum())
    assert within(int((shown == MASK).sum()), total, config.masked)
    # A random token is the old one as often as any other.
    changed = int((chosen & (shown != MASK) & (shown != tokens)).sum())
    assert within(changed, total, config.random * (1 - 1 / (VOCABULARY - 1)))


def test_the_papers_shares_are_the_default():
    assert (PAPERS.fraction, PAPERS.masked, PAPERS.random) == (0.15, 0.8, 0.1)


def test_every_token_but_the_separator_is_drawn_as_a_random_one_alike():
    tokens = np.full(100_000, 3)
    shown, _ = masked(tokens, separator=7, config=MaskConfig(1.0, 0.0, 1.0))
    counts = np.bincount(shown, minlength=VOCABULARY + 1)
    assert counts[7] == counts[MASK] == 0
    others = np.delete(counts, [7, MASK])
    assert all(within(count, len(tokens), 1 / (VOCABULARY - 1)) for count in others)


def test_every_place_is_chosen_alike():
    counts = np.zeros(20)
    for seed in range(4000):
        counts += masked(np.arange(1, 21), 0, seed=seed)[1] != IGNORED
    assert all(within(int(count), 4000, 0.15) for count in counts)


sizes = st.tuples(st.integers(2, 12), st.integers(1, 9)).flatmap(
    lambda size: st.tuples(*map(st.just, size), st.integers(size[0] - 1, 120))
)


def batches(sizes, seed, separator=0):
    context, rows, n_tokens = sizes
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=n_tokens)
    form = Masked(context, separator, VOCABULARY, PAPERS, seed)
    return Batches(stream(tokens), form, rows, seed), tokens


@settings(max_examples=60, deadline=None)
@given(sizes, seeds, st.integers(0, 50), st.data())
def test_rows_do_not_depend_on_who_asks(sizes, seed, step, data):
    rows = sizes[1]
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=4))})
    whole, mine = batches(sizes, seed)[0].batch(step), batches(sizes, seed)[0]
    parts = [mine.rows(step, a, b - a) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@settings(max_examples=60, deadline=None)
@given(sizes, seeds)
def test_an_epoch_holds_each_token_once_behind_separators(sizes, seed):
    context, _, _ = sizes
    separator = 0
    found, tokens = batches(sizes, seed, separator)
    epoch = [found.rows(0, row, 1) for row in range(found.n_windows)]
    seen = []
    for batch in epoch:
        assert batch.inputs.shape == batch.targets.shape == (1, context)
        assert batch.inputs[0, 0] == separator
        assert batch.targets[0, 0] == IGNORED
        real = torch.ones(context, dtype=torch.bool) if batch.mask is None else batch.mask[0, 0, 0]
        assert torch.all(batch.inputs[0, ~real] == separator)
        assert torch.all(batch.targets[0, ~real] == IGNORED)
        row = torch.where(batch.targets == IGNORED, batch.inputs, batch.targets)[0, real]
        seen += row[1:].tolist()
    assert sorted(seen) == sorted(tokens.tolist())


def test_masks_are_new_in_each_epoch_and_of_each_seed():
    form = Masked(33, 0, VOCABULARY, PAPERS, seed=1)
    other = Masked(33, 0, VOCABULARY, PAPERS, seed=2)
    tokens = np.arange(1, 33)
    rows = [form.batch([Window(tokens, 5, epoch)]).targets for epoch in (0, 1)]
    rows += [form.batch([Window(tokens, 6)]).targets, other.batch([Window(tokens, 5)]).targets]
    assert len({tuple(row.flatten().tolist()) for row in rows}) == 4
    again = form.batch([Window(tokens, 5, 1)]).targets
    assert torch.equal(again, rows[1])


def test_a_short_window_is_padded_and_its_padding_hidden():
    form = Masked(6, 0, VOCABULARY, PAPERS, seed=0)
    whole, short = Window(np.arange(1, 6), 0), Window(np.arange(6, 8), 1)
    assert form.batch([whole]).mask is None
    batch = form.batch([whole, short])
    assert batch.mask is not None
    assert batch.mask.shape == (2, 1, 1, 6)
    assert batch.mask[:, 0, 0].tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    assert batch.inputs[1, 3:].tolist() == [0, 0, 0]


def test_settings_that_cannot_be_are_one_line():
    with pytest.raises(UserError, match="context of 1"):
        Masked(1, 0, VOCABULARY, PAPERS, 0)
    for wrong in ({"fraction": 0.0}, {"fraction": 1.2}, {"masked": 0.95}, {"random": -0.1}):
        with pytest.raises(UserError, match=r"data\.mask\."):
            MaskConfig(**wrong)


def test_too_few_tokens():
    form = Masked(10, 0, VOCABULARY, PAPERS, 0)
    with pytest.raises(UserError, match="has 8 tokens, fewer than the 9 of one sequence"):
        Batches(stream(np.arange(8)), form, 2, 0)
    assert Batches(stream(np.arange(9)), form, 2, 0).n_windows == 1
