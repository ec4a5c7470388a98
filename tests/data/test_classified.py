"""Sequences, splits and batches of labelled examples."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unitsphere.data.labelled import (
    Example,
    encode_examples,
    fitting,
    padded_rows,
    shuffled_batches,
    stratified,
)
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import UserError

# A busy machine generates slowly.
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

BYTES = load_tokenizer("bytes")


def encoded(length: int, *texts: str):
    a, b = (*texts, None)[:2]
    found = encode_examples([Example(a, b, "0", 1)], BYTES, length)
    return bytes(found.tokens[0].tolist()), found.truncated


def test_a_text_stands_between_separators():
    assert encoded(10, "ab") == (b"\0ab\0", 0)


def test_a_pair_has_a_separator_between():
    assert encoded(10, "ab", "cde") == (b"\0ab\0cde\0", 0)


def test_the_longer_text_is_cut_and_counted():
    assert encoded(6, "abcdef") == (b"\0abcd\0", 1)
    assert encoded(9, "ab", "cdefgh") == (b"\0ab\0cdef\0", 1)
    assert encoded(9, "abcdef", "ghijkl") == (b"\0abc\0ghi\0", 1)


def test_a_length_without_room_is_refused():
    with pytest.raises(UserError, match="leave no room"):
        encoded(3, "a")


@relaxed
@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 60))
def test_cutting_is_token_by_token_from_the_longer(first, second, room):
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b or (a == b and second > first) else (a, b - 1)
    found = fitting(first, second, room)
    assert sum(found) == a + b
    assert abs(found[0] - a) <= 1  # which of two equally long texts is cut first is free


@relaxed
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(0, 5))
def test_a_split_is_disjoint_complete_and_stratified(classes, seed):
    rest, part = stratified(classes, 0.2, seed)
    assert sorted(rest + part) == list(range(len(classes)))
    total, taken = Counter(classes), Counter(classes[i] for i in part)
    for name, count in total.items():
        assert abs(taken[name] - 0.2 * count) <= 1
        assert count == 1 or 0 < taken[name] < count
    assert (rest, part) == stratified(classes, 0.2, seed)


def test_a_split_depends_on_its_seed_and_stays_among_what_it_is_given():
    classes = [0, 1] * 50
    assert stratified(classes, 0.2, 0) != stratified(classes, 0.2, 1)
    rest, part = stratified(classes, 0.2, 0, among=range(20))
    assert sorted(rest + part) == list(range(20))


def test_rows_are_filled_up_on_the_right():
    rows = padded_rows([np.array([0, 5, 0]), np.array([0, 6, 7, 0])], separator=0)
    assert rows.tokens.tolist() == [[0, 5, 0, 0], [0, 6, 7, 0]]
    assert rows.real.tolist() == [[True, True, True, False], [True] * 4]


def test_every_epoch_has_every_example_once_in_another_order():
    batches = list(shuffled_batches(range(10), rows=4, epochs=2, seed=0))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    first, second = [*chain(*batches[:3])], [*chain(*batches[3:])]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert batches == list(shuffled_batches(range(10), rows=4, epochs=2, seed=0))
    assert batches != list(shuffled_batches(range(10), rows=4, epochs=2, seed=1))
