"""Texts while they are written: the pieces are the whole, stop strings end a row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference.generate import Text, TextWatch, generate, generate_text
from unitsphere.models.registry import build

STOPS = st.lists(st.text("ab\nü", min_size=1, max_size=3), max_size=2)


@given(text=st.text("abc\nü🙂", max_size=12), stops=STOPS, prompt=st.text("aü", max_size=3))
def test_what_is_shown_piece_by_piece_is_the_text_before_the_first_stop_string(text, stops, prompt):
    tokenizer = ByteTokenizer()
    pieces: list[str] = []
    row = Text(tokenizer, tokenizer.encode(prompt), stops)
    watch = TextWatch([row], lambda number, piece: pieces.append(piece))
    new: list[int] = []
    for token in tokenizer.encode(text):
        new.append(token)
        if watch(0, new):
            break
    shown_before_the_end = "".join(pieces)
    watch.finish([new])
    # The row ends with the character that completes a stop string.
    ends = (text[:n] for n in range(len(text) + 1) if any(stop in text[:n] for stop in stops))
    text = next(ends, text)
    found = [text.find(stop) for stop in stops if stop in text]
    assert "".join(pieces) == text[: min(found, default=len(text))]
    assert "".join(pieces).startswith(shown_before_the_end)
    assert row.stops_in(new) == bool(found)


def test_text_is_shown_as_soon_as_it_is_certain():
    tokenizer = ByteTokenizer()
    row = Text(tokenizer, [], ["<end>"])
    ids = tokenizer.encode("aü<e!")
    assert [row.certain(ids[:n]) for n in range(1, 7)] == ["a", "a", "aü", "aü", "aü", "aü<e!"]


class Counting(ByteTokenizer):
    """Counts how often it decodes."""

    def __init__(self):
        self.decoded = 0

    def decode(self, ids):
        self.decoded += 1
        return super().decode(ids)


@pytest.mark.parametrize("show", [None, lambda number, piece: None])
def test_each_token_is_decoded_once(show):
    tokenizer = Counting()
    row = Text(tokenizer, tokenizer.encode("a prompt"), ["<end>"])
    watch, new, before = TextWatch([row], show), [], tokenizer.decoded
    for token in tokenizer.encode("abc<en"):
        new.append(token)
        assert not watch(0, new)
    watch.finish([new])
    assert row.whole(new) == "abc<en"
    assert tokenizer.decoded - before == len(new)


@pytest.fixture(scope="module")
def model():
    return build("ngpt", vocab_size=256, d_model=32, n_layers=1, n_heads=2, seed=2).double()


def test_rows_stop_alone_and_what_is_shown_is_the_completion(model):
    prompts = ["one", "another"]
    free = generate_text(model, ByteTokenizer(), prompts, 24, temperature=1.0, seed=1)
    stop = free[0].text[3:5]
    shown = ["", ""]

    def show(row, piece):
        shown[row] += piece

    found = generate_text(
        model, ByteTokenizer(), prompts, 24, temperature=1.0, seed=1, stops=[stop], show=show
    )
    for row, (one, whole) in enumerate(zip(found, free, strict=True)):
        assert one.text == shown[row] == whole.text.split(stop)[0]
    assert found[0].stopped
    assert found[0].tokens < free[0].tokens
    with pytest.raises(UserError, match="empty"):
        generate_text(model, ByteTokenizer(), prompts, 4, stops=[""])


def test_a_watch_ends_its_row_and_no_other(model):
    seen = []

    def watch(row, new):
        seen.append((row, len(new)))
        return row == 1 and len(new) == 2

    drawn = generate(model, [[1], [2]], 5, watch=watch)
    assert [len(row) for row in drawn] == [5, 2]
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (0, 4), (0, 5)]


def test_a_large_penalty_never_repeats_and_one_changes_nothing(model):
    prompt = [5, 6, 7]
    plain = generate(model, [prompt, [9]], 12)
    assert generate(model, [prompt, [9]], 12, repetition_penalty=1.0) == plain
    with torch.no_grad():  # logits of both signs, so that none that was not seen is beaten
        drawn = generate(model, [prompt, [9]], 12, repetition_penalty=1e6)
    for row, start in zip(drawn, ([5, 6, 7], [9]), strict=True):
        assert len(set(row)) == len(row)
        assert not set(row) & set(start)
    assert drawn[0] == generate(model, [prompt], 12, repetition_penalty=1e6)[0]
