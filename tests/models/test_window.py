"""A sliding window in every design: how far a token sees, with cache and padding too."""

from typing import Any

import pytest
import torch
from design_cases import DESIGNS, OBJECTIVES, logits, make, scattered, source_of, tokens

from unitsphere.errors import UserError
from unitsphere.models.context import SelfContext

EVERY = pytest.mark.parametrize("design", DESIGNS)


def windowed(design, objective="clm", window: int | None = 3, **numbers: Any):
    """A model of two layers with grouped heads, off its start, in double."""
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, **numbers}
    return scattered(make(design, objective, window=window, **sizes))


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@EVERY
@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_two_layers_see_twice_as_far_and_no_farther(design, objective):
    model, x = windowed(design, objective), tokens(1, 12).repeat(13, 1)
    places = torch.arange(12)
    x[1 + places, places] = (x[0] + 1) % 24
    found = model(x)
    moved = (found[1:] - found[0]).abs().amax(dim=-1) > 1e-12
    away = places - places[:, None]
    near = away.abs() <= 2 * (3 - 1)
    assert torch.equal(moved, near if objective == "mlm" else near & (away >= 0))


@EVERY
def test_cached_logits_equal_uncached_ones(design):
    model, x = windowed(design), tokens(2, 11)
    cache = model.new_cache(2, 11)
    cuts = [(0, 2), (2, 3), (3, 4), (4, 8), (8, 9), (9, 10), (10, 11)]
    parts = [model(x[:, a:b], cache) for a, b in cuts]
    equal(torch.cat(parts, 1), model(x))


@EVERY
def test_left_padding_changes_nothing_with_the_cache_either(design):
    model, x = windowed(design), tokens(1, 7)
    padded = torch.cat([tokens(1, 5, seed=9), x], dim=1)
    padding = torch.tensor([5])
    equal(model(padded, left_padding=padding)[:, 5:], model(x))
    cache = model.new_cache(1, 12)
    parts = [model(padded[:, a:b], cache, padding) for a, b in ((0, 8), (8, 9), (9, 12))]
    equal(torch.cat(parts, 1)[:, 5:], model(x))


@EVERY
def test_padding_as_long_as_the_window_changes_nothing_for_an_encoder(design):
    model, x = windowed(design, "mlm"), tokens(1, 6)
    padded = torch.cat([x, tokens(1, 5, seed=9)], dim=1)
    real = (torch.arange(11) < 6)[None]
    found = model(padded, mask=real[:, None, None, :])
    assert torch.isfinite(found).all()
    equal(found[:, :6], model(x))
    left = torch.cat([tokens(1, 5, seed=9), x], dim=1)
    equal(model(left, left_padding=torch.tensor([5]))[:, 5:], model(x))


@EVERY
def test_the_encoder_of_a_pair_is_windowed_and_the_look_across_is_not(design):
    model, source, x = windowed(design, "seq2seq"), tokens(1, 6), tokens(1, 8, seed=3)
    padded = torch.cat([source, tokens(1, 5, seed=9)], dim=1)
    real = (torch.arange(11) < 6)[None]
    memory, plain = model.encode(padded, real), model.encode(source)
    assert torch.isfinite(memory.h).all()
    equal(memory.h[:, :6], plain.h)
    equal(model(x, memory=memory), model(x, memory=plain))
    other = source.clone()
    other[:, 0] = (other[:, 0] + 1) % 24
    moved = (model.encode(other).h - plain.h).abs().amax(-1)[0] > 1e-12
    assert moved.tolist() == [True] * 5 + [False]
    changed = type(plain)(torch.cat([model.encode(other).h[:, :1], plain.h[:, 1:]], 1), None)
    assert ((model(x, memory=changed) - model(x, memory=plain)).abs().amax(-1) > 1e-12).all()
    cache = model.new_cache(1, 8)
    parts = [model(x[:, a : a + 1], cache, memory=plain) for a in range(8)]
    equal(torch.cat(parts, 1), model(x, memory=plain))


@EVERY
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_window_as_long_as_the_sequence_is_none_to_the_bit(design, objective):
    wide, none = windowed(design, objective, window=7), windowed(design, objective, window=None)
    x, source = tokens(2, 7), source_of(none)
    assert torch.equal(logits(wide, x, **source), logits(none, x, **source))


@EVERY
def test_a_window_of_one_shows_a_token_itself_alone(design):
    model, x = windowed(design, window=1), tokens(1, 5)
    alone = [model(x[:, : i + 1], mask=torch.eye(i + 1).bool())[:, -1] for i in range(5)]
    equal(model(x)[0], torch.cat(alone))


def test_a_mask_takes_the_place_of_causality_within_the_window():
    model, x = windowed("ngpt"), tokens(1, 8)
    everyone = torch.ones(8, 8).bool()
    encoder = windowed("ngpt", "mlm")
    equal(model(x, mask=everyone), encoder(x))
    equal(model(x, mask=everyone.tril()), model(x))


def test_the_keys_that_angpt_counts_are_those_in_the_window(monkeypatch):
    counts, count = [], SelfContext.keys_seen
    monkeypatch.setattr(
        SelfContext, "keys_seen", lambda c, k: counts.append(count(c, k)) or counts[-1]
    )
    model = windowed("angpt", attention_factor=True, n_layers=1)
    model(tokens(1, 5))
    assert counts[0].flatten().tolist() == [1, 2, 3, 3, 3]


@EVERY
@pytest.mark.parametrize("window", [0, -2])
def test_a_window_without_the_token_itself_is_refused(design, window):
    with pytest.raises(UserError) as caught:
        make(design, window=window)
    assert str(caught.value) == (
        f"model.window must be at least 1, which is the token itself: {window}; "
        "leave it out to see everything"
    )
