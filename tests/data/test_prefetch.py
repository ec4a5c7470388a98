"""Batches that are read ahead are the same batches."""

import threading

import pytest
import torch

from unitsphere.data.batch import NextToken
from unitsphere.data.batches import Batches, Prefetch
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError


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
