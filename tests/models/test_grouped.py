"""Grouped-query attention in every design: H heads of queries, H_kv of keys and values."""

from typing import Any

import pytest
import torch
from design_cases import DESIGNS, OBJECTIVES, logits, make, scattered, source_of, tokens

from unitsphere.errors import UserError

H, D = 4, 32
EVERY = pytest.mark.parametrize("design", DESIGNS)
OF_EACH = pytest.mark.parametrize("objective", OBJECTIVES)
GROUPS = pytest.mark.parametrize("n_kv_heads", [1, 2])


def grouped(design, objective="clm", n_kv_heads: int | None = 2, **numbers: Any):
    """A model with 4 heads of 8, off its start, in double."""
    sizes = {"d_model": D, "n_heads": H, "n_layers": 2, "n_kv_heads": n_kv_heads, **numbers}
    return scattered(make(design, objective, **sizes))


def repeated(tensor, shape):
    """The first axis, H_kv equal parts, to H parts: each part H/H_kv times in a row."""
    if tensor.shape == shape:
        return tensor
    times = shape[0] // tensor.shape[0]
    parts = tensor.unflatten(0, (H // times, -1))
    return parts.repeat_interleave(times, dim=0).flatten(0, 1)


def gathered(tensor, shape):
    """The adjoint of `repeated`: sums over each group."""
    if tensor.shape == shape:
        return tensor
    times = tensor.shape[0] // shape[0]
    parts = tensor.unflatten(0, (H // times, times, -1))
    return parts.sum(1).flatten(0, 1)


@EVERY
@OF_EACH
@GROUPS
def test_it_is_full_attention_whose_heads_of_keys_are_those_of_the_group(
    design, objective, n_kv_heads
):
    """Logits, and the gradients, which a group sums; LN_q,k,v of NormFormer and s_qk too."""
    numbers = {"qkv_ln": True} if DESIGNS[design][0] == "normformer" else {}
    few = grouped(design, objective, n_kv_heads, **numbers)
    many = grouped(design, objective, None, **numbers)
    wanted = many.state_dict()
    state = {name: repeated(t, wanted[name].shape) for name, t in few.state_dict().items()}
    many.load_state_dict(state)
    x, source = tokens(2, 7), source_of(few)
    torch.testing.assert_close(logits(few, x, **source), logits(many, x, **source))
    for model in (few, many):
        model.loss(x, x.roll(-1, 1), **source).backward()
    for name, p in few.named_parameters():
        other = gathered(many.get_parameter(name).grad, p.shape)
        torch.testing.assert_close(p.grad, other, rtol=1e-7, atol=1e-12)


@EVERY
def test_as_many_heads_of_keys_as_of_queries_is_none_to_the_bit(design):
    sizes = {"d_model": D, "n_heads": H, "n_layers": 2}
    plain, same = make(design, **sizes), make(design, **sizes, n_kv_heads=H)
    a, b = plain.state_dict(), same.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(plain(tokens(2, 7)), same(tokens(2, 7)))


@EVERY
@GROUPS
def test_what_keys_and_values_are_made_with_is_smaller(design, n_kv_heads):
    few, many = (
        make(design, "seq2seq", d_model=D, n_heads=H, n_kv_heads=n) for n in (n_kv_heads, None)
    )
    changed = {}
    for name, p in few.named_parameters():
        if p.shape != many.get_parameter(name).shape:
            changed[name.split(".", 2)[2]] = tuple(p.shape)
    expected = {"W_k.weight": (n_kv_heads * 8, D), "W_v.weight": (n_kv_heads * 8, D)}
    if DESIGNS[design][0] == "normformer":
        expected |= {"W_k.bias": (n_kv_heads * 8,), "W_v.bias": (n_kv_heads * 8,)}
    if design == "ngpt":
        expected |= {"s_qk.stored": (n_kv_heads, 1, 8)}
    sublayers = ("attention", "cross")
    assert changed == {f"{s}.{name}": shape for s in sublayers for name, shape in expected.items()}


@EVERY
@GROUPS
def test_the_cache_holds_the_heads_of_keys_alone_and_changes_nothing(design, n_kv_heads):
    model, x = grouped(design, n_kv_heads=n_kv_heads), tokens(2, 9)
    cache = model.new_cache(2, 9)
    parts = [model(part, cache) for part in (x[:, :4], x[:, 4:5], x[:, 5:8], x[:, 8:])]
    torch.testing.assert_close(torch.cat(parts, 1), model(x), rtol=0, atol=1e-11)
    states = [layer.mixer for layer in cache.layers]
    shapes = {x.shape for state in states for x in (state.keys, state.values)}
    assert shapes == {(2, n_kv_heads, 9, 8)}


@EVERY
def test_the_memory_is_cached_by_the_heads_of_keys(design):
    model, x = grouped(design, "seq2seq"), tokens(2, 5, seed=3)
    memory, cache = model.encode(tokens(2, 7)), model.new_cache(2, 5)
    parts = [model(part, cache, memory=memory) for part in (x[:, :3], x[:, 3:])]
    torch.testing.assert_close(torch.cat(parts, 1), model(x, memory=memory), rtol=0, atol=1e-11)
    assert {k.shape for layer in cache.layers for k in layer.memory} == {(2, 2, 7, 8)}


@EVERY
def test_left_padding_changes_nothing(design):
    model, x = grouped(design), tokens(1, 6)
    padded = torch.cat([tokens(1, 3, seed=9), x], dim=1)
    found = model(padded, left_padding=torch.tensor([3]))[:, 3:]
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-11)


@EVERY
@pytest.mark.parametrize("n_kv_heads", [0, -1, 3, 8])
def test_heads_that_do_not_divide_are_refused(design, n_kv_heads):
    with pytest.raises(UserError) as caught:
        make(design, n_heads=4, n_kv_heads=n_kv_heads)
    assert str(caught.value) == (
        f"model.n_heads 4 is not divisible by model.n_kv_heads {n_kv_heads}: change one of them"
    )
