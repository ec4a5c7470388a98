"""Every token is a target once per epoch, in any order of rows; batches read ahead are the same."""

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import counting

from unitsphere.data import IGNORED
from unitsphere.data.batch import NextToken, Window
from unitsphere.data.batches import Batches, Prefetch
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError

SEPARATOR = S = 9_999


def batches(n_tokens: int, context: int, rows: int, seed: int, split: str = "train") -> Batches:
    form = NextToken(context, SEPARATOR, score_separators=True)
    return Batches(counting(n_tokens, split), form, rows, seed)


sizes = st.integers(1, 12).flatmap(
    lambda context: st.tuples(st.just(context), st.integers(context + 1, 120), st.integers(1, 9))
)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 2**32))
def test_each_token_is_a_target_once_an_epoch(sizes: tuple[int, int, int], seed: int) -> None:
    context, n_tokens, rows = sizes
    found = batches(n_tokens, context, rows, seed)
    steps = 2 * found.n_windows  # So that whole epochs are whole batches: 2 * rows epochs.
    targets = [found.batch(step).targets for step in range(steps)]
    counted = torch.cat(targets).flatten()
    counted = counted[counted != IGNORED]
    expected = [0] + [2 * rows] * (n_tokens - 1)
    assert torch.bincount(counted, minlength=n_tokens).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 50))
def test_targets_are_the_next_tokens(sizes: tuple[int, int, int], step: int) -> None:
    context, n_tokens, rows = sizes
    batch = batches(n_tokens, context, rows, 0).batch(step)
    inputs, targets = batch.inputs, batch.targets
    assert inputs.shape == targets.shape == (rows, context)
    assert inputs.dtype == targets.dtype == torch.int64
    real = targets != IGNORED
    assert torch.equal(targets[real], inputs[real] + 1)
    assert torch.all(inputs[~real] == SEPARATOR)
    assert torch.all(real[:, 0])


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 50), st.data())
def test_rows_do_not_depend_on_who_asks(
    sizes: tuple[int, int, int], step: int, data: st.DataObject
) -> None:
    context, n_tokens, rows = sizes
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=4))})
    whole = batches(n_tokens, context, rows, 3).batch(step)
    mine = batches(n_tokens, context, rows, 3)
    parts = [mine.rows(step, a, b - a) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        found = batches(1001, 10, 4, seed)
        steps = range(25 * epoch, 25 * (epoch + 1))
        return torch.cat([found.batch(step).inputs[:, 0] for step in steps]).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert sorted(order(1, 0)) == sorted(order(2, 1))


def test_too_few_tokens() -> None:
    with pytest.raises(UserError, match="has 10 tokens, fewer than the 11 of one sequence"):
        batches(10, 10, 2, 0)
    assert batches(11, 10, 2, 0).n_windows == 1
    inputs = batches(4, 10, 1, 0, "val").batch(0).inputs
    assert inputs.tolist() == [[0, 1, 2] + [SEPARATOR] * 7]
    with pytest.raises(UserError, match="the val split of folder has 1 tokens"):
        batches(1, 10, 2, 0, "val")
    with pytest.raises(UserError, match="at least 0"):
        batches(11, 10, 2, -1)


def test_a_separator_begins_a_document_wherever_the_window_was_cut() -> None:
    tokens = np.array([S, 1, 2, S, 3, 4, 5, S, S, 6, 7], np.uint16)
    form = NextToken(5, S, score_separators=True, apart=True)
    batch = form.batch([Window(tokens[:6], 0), Window(tokens[5:], 1), Window(tokens[9:], 2)])
    assert batch.inputs.tolist() == [[S, 1, 2, S, 3], [4, 5, S, S, 6], [6, S, S, S, S]]
    assert batch.documents is not None
    assert batch.documents.tolist() == [[1, 1, 1, 2, 2], [0, 0, 1, 2, 2], [0, 1, 2, 3, 4]]
    together = NextToken(5, S, score_separators=True).batch([Window(tokens[:6], 0)])
    assert together.documents is None


@pytest.fixture
def plain(ready):
    shards = Shards.open(ready)
    return Batches(shards, NextToken(16, shards.separator, score_separators=True), 4, seed=3)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_they_are_the_same_in_any_order(plain, ahead):
    with Prefetch(plain, ahead) as ready:
        for step in (0, 1, 2, 3, 9, 4, 5, 5, 6, 0):
            assert torch.equal(ready.batch(step).inputs, plain.batch(step).inputs)
            assert torch.equal(ready.rows(step, 1, 2).targets, plain.batch(step).targets[1:3])


class Noted:
    """Notes which steps were read, and by which thread."""

    def __init__(self, batches, bad=None):
        self.batches, self.bad, self.read, self.threads = batches, bad, [], set()
        self.one = threading.Semaphore(0)

    def batch(self, step):
        self.read.append(step)
        self.threads.add(threading.current_thread())
        self.one.release()
        if step == self.bad:
            raise UserError("a shard was changed")
        return self.batches.batch(step)

    rows = None


def test_the_next_ones_are_read_while_one_is_used(plain):
    noted = Noted(plain)
    with Prefetch(noted, 2) as ready:
        ready.batch(5)
        for _ in range(3):
            assert noted.one.acquire(timeout=30)
        assert noted.read == [5, 6, 7]
        ready.batch(6)
        assert noted.one.acquire(timeout=30)
        assert noted.read == [5, 6, 7, 8]
    assert threading.current_thread() not in noted.threads


def test_a_mistake_is_raised_where_its_step_is_asked_for(plain):
    with Prefetch(Noted(plain, bad=6), 2) as ready:
        ready.batch(4)
        ready.batch(5)
        with pytest.raises(UserError, match="a shard was changed"):
            ready.batch(6)
        ready.batch(7)
