"""Activation checkpointing: blocks computed again in the backward pass change no bit."""

import functools

import pytest
import torch
from design_cases import DESIGNS, OBJECTIVES, make, source_of, tokens
from torch.utils.checkpoint import checkpoint

DROPPED = [("normformer", {"dropout": 0.3}), ("post-ln", {"attention_dropout": 0.3})]


def passed(model):
    """Loss and gradients, dropout drawn from the same seed."""
    torch.manual_seed(0)
    x = tokens(2, 6)
    loss = model.loss(x, x.roll(-1, 1), label_smoothing=0.1, **source_of(model))
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return found


def count_calls(block, counts):
    """The block's forward, counted and then checkpointed; its checkpoints go to `counts`."""
    forward = block.forward

    def counted(*arguments):
        counts[id(block)] = counts.get(id(block), 0) + 1
        return forward(*arguments)

    block.forward = functools.partial(checkpoint, counted, use_reentrant=False)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("design", "numbers"),
    [*((d, {}) for d in DESIGNS), *DROPPED],
    ids=lambda x: x if isinstance(x, str) else ",".join(f"{k}={v}" for k, v in x.items()),
)
def test_checkpointed_blocks_change_nothing(design, numbers, objective):
    model = make(design, objective, n_layers=2, **numbers)
    plain = passed(model)
    counts: dict[int, int] = {}
    blocks = [*model.blocks, *(model.encoder or ())]
    for block in blocks:
        count_calls(block, counts)
    for a, b in zip(plain, passed(model), strict=True):
        assert torch.equal(a, b)
    assert list(counts.values()) == [2] * len(blocks)  # forward, and again for the backward
