"""Generation: the cache changes nothing, nor does the company of other prompts."""

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.inference.generate import generate, generate_text, left_pad
from unitsphere.models.registry import ARCHITECTURES, build

VOCABULARY = 61
PROMPTS = [[5, 9, 2, 40, 8, 3, 3], [7], [11, 12, 60, 1]]


@pytest.fixture(params=sorted(ARCHITECTURES))
def model(request):
    """A small model of each architecture in fp64."""
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return build(request.param, seed=3, **sizes).double()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def test_cached_logits_equal_uncached_at_every_position(model):
    batch = tokens(2, 17)
    whole = model(batch)
    cache = model.new_cache(2, 17)
    # A prompt at once, single tokens, then several at a time.
    pieces = [model(piece, cache=cache) for piece in batch.split([5, 1, 1, 4, 1, 5], dim=1)]
    assert cache.length == 17
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_padding_before_a_row_changes_nothing(model):
    alone = [model(torch.tensor([prompt]))[0] for prompt in PROMPTS]
    batch, padding = left_pad(PROMPTS, 0, model.device)
    assert padding is not None
    together = model(batch, left_padding=padding)
    cache = model.new_cache(len(PROMPTS), batch.shape[1])
    pieces = [model(p, cache=cache, left_padding=padding) for p in batch.split([2, 1, 4], dim=1)]
    for row, expected in enumerate(alone):
        start = int(padding[row])
        torch.testing.assert_close(together[row, start:], expected, rtol=0, atol=1e-6)
        cached = torch.cat(pieces, 1)[row, start:]
        torch.testing.assert_close(cached, expected, rtol=0, atol=1e-6)


def test_greedy_is_the_argmax_of_the_uncached_model(model):
    row = list(PROMPTS[0])
    for _ in range(12):
        with torch.inference_mode():
            row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
    assert generate(model, PROMPTS[:1], 12) == [row[len(PROMPTS[0]) :]]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}]
)
def test_a_prompt_in_a_batch_gives_what_it_gives_alone(model, settings):
    together = generate(model, PROMPTS, 12, seed=5, **settings)
    for row, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], 12, seed=5 + row, **settings) == [together[row]]


def test_the_seed_decides(model):
    def draw(seed: int) -> list[list[int]]:
        return generate(model, [[1], [1]], 12, temperature=1.0, seed=seed)

    assert draw(0) == draw(0)
    assert draw(0) != draw(7)
    assert draw(0)[0] != draw(0)[1]


def test_a_row_ends_before_the_stop_token(model):
    free = generate(model, PROMPTS, 12, temperature=1.0)
    stop = free[1][4]
    stopped = generate(model, PROMPTS, 12, temperature=1.0, stop=stop)
    for before, after in zip(free, stopped, strict=True):
        assert after == (before[: before.index(stop)] if stop in before else before)
    assert len(stopped[1]) <= 4


def test_ids_beyond_the_vocabulary_are_never_drawn(model):
    drawn = generate(model, PROMPTS, 12, temperature=5.0, vocab_size=8)
    assert {token for row in drawn for token in row} <= set(range(8))


def test_odd_requests(model):
    assert generate(model, [], 4) == []
    with pytest.raises(ValueError, match="separator"):
        generate(model, [[1], []], 4)
    with pytest.raises(UserError, match="max_tokens"):
        generate(model, [[1]], 0)


class Letters:
    """A tokenizer of a character a token; token 0 separates documents."""

    separator = 0
    vocab_size = VOCABULARY

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("A") + 1 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(token + ord("A") - 1) for token in ids)


def test_texts_begin_with_the_separator(model):
    prompts = ["", "ABC"]
    expected = generate(model, [[0], [0, 1, 2, 3]], 10, temperature=1.0, stop=0)
    completions = generate_text(model, Letters(), prompts, 10, temperature=1.0)
    for completion, prompt, ids in zip(completions, prompts, expected, strict=True):
        assert completion.prompt == prompt
        assert completion.text == Letters().decode(ids)
        assert completion.prompt_tokens == len(prompt) + 1
        assert completion.tokens == len(ids)
        assert completion.stopped == (len(ids) < 10)


def test_a_string_in_the_place_of_a_list_is_refused(model):
    """Each of its characters was taken for a prompt, or for a stop string."""
    with pytest.raises(UserError, match="give a list of prompts, not a single string"):
        generate_text(model, Letters(), "ABC", 3)
    with pytest.raises(UserError, match="give a list of stop strings, not a single string"):
        generate_text(model, Letters(), ["ABC"], 3, stops="AB")
