"""Encoders and encoder–decoders against the reference oracles, for every switch.

As test_oracles.py for causal models: logits, loss and every gradient, fp64 to 1e-10, fp32 to 1e-5.
"""

import pytest
import torch
from oracle_cases import CASES, NARROWED, V, batch, distance, largest_gradient, oracle_name, setup

EVERY = pytest.mark.parametrize("case", CASES)
UNPADDED = [*NARROWED, *(f"{case}-narrow" for case in NARROWED), "angpt", "normformer"]
"""Without padding there is no mask, which attention alone notices: designs, with a window and
without. Every other switch meets it in the row of a padded batch that has no padding."""


def agree(case, model, tensors, loss, expected):
    """The loss and the gradients of every parameter are the oracle's, in fp64 and in fp32."""
    largest = largest_gradient(tensors)
    for dtype, bound, share in ((torch.float64, 1e-10, 0.01), (torch.float32, 1e-5, 0.2)):
        model.to(dtype)
        model.zero_grad()
        found = loss()
        assert distance(found, expected) < bound
        found.backward()
        for name, p in model.named_parameters():
            wanted = tensors[oracle_name(CASES[case][0], name)].grad
            assert distance(p.grad, wanted, share * largest) < bound, (name, dtype)


@pytest.mark.parametrize("case", UNPADDED)
def test_encoder(case):
    model, oracle, settings, tensors = setup(case, "mlm")
    tokens, targets = batch()
    assert distance(model(tokens), oracle.forward(tensors, settings, tokens)) < 1e-10
    expected = oracle.loss(tensors, settings, tokens, targets)
    expected.backward()
    agree(case, model, tensors, lambda: model.loss(tokens, targets), expected)


@EVERY
def test_encoder_with_padding_at_the_end(case):
    model, oracle, settings, tensors = setup(case, "mlm")
    tokens, targets = batch()
    real = torch.arange(7) < torch.tensor([[7], [4]])
    targets = targets.masked_fill(~real, -100)
    mask = real[:, None, None, :]
    wanted = oracle.forward(tensors, settings, tokens, mask=real[:, None])
    seen = real | (settings.window is None)  # in a window padding may see nothing at all
    assert distance(model(tokens, mask=mask)[seen], wanted[seen]) < 1e-10
    expected = oracle.loss(tensors, settings, tokens, targets, mask=real[:, None])
    expected.backward()
    agree(case, model, tensors, lambda: model.loss(tokens, targets, mask=mask), expected)


@pytest.mark.parametrize(
    ("case", "padded"), [*((case, True) for case in CASES), *((case, False) for case in UNPADDED)]
)
def test_encoder_decoder(case, padded):
    model, oracle, settings, tensors = setup(case, "seq2seq")
    tokens, targets = batch()
    source = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(3))
    real = torch.arange(9) < torch.tensor([[9], [5]]) if padded else None
    memory = oracle.encode(tensors, settings, source, real)
    found = model.encode(source, real)
    kept = slice(0, 5) if padded else slice(None)
    assert distance(found.h[0], memory[0]) < 1e-10
    assert distance(found.h[1, kept], memory[1, kept]) < 1e-10
    wanted = oracle.forward(tensors, settings, tokens, memory=memory, source_mask=real)
    assert distance(model(tokens, memory=found), wanted) < 1e-10
    smoothing = 0.1 if padded else 0.0
    over = {"source": source, "source_mask": real, "label_smoothing": smoothing}
    expected = oracle.loss(tensors, settings, tokens, targets, **over)
    expected.backward()
    agree(case, model, tensors, lambda: model.loss(tokens, targets, **over), expected)
