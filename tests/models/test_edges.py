"""Sizes that the equations allow and zero vectors, for every design and objective."""

import pytest
import torch
from design_cases import DESIGNS, EVERY, in_turn, logits, make, source_of, tokens

from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints
from unitsphere.training.optim.constraint import constrain

OF_EACH = pytest.mark.parametrize(("design", "objective"), EVERY)
UNTURNED = {"rotary_fraction": 0.0}
SIZES = {
    "one token in the vocabulary": {"vocab_size": 1},
    "a vocabulary of 65": {"vocab_size": 65},
    "one head": {"n_heads": 1},
    "odd heads, no RoPE": {"d_model": 15, "n_heads": 3, **UNTURNED},
    "odd heads, four dimensions turned": {"d_model": 15, "n_heads": 3, "rotary_fraction": 0.8},
    "heads of one dimension": {"d_model": 4, "n_heads": 4, **UNTURNED},
    "heads of two dimensions": {"d_model": 6, "n_heads": 3, "rotary_fraction": 1.0},
    "one dimension in all": {"d_model": 1, "n_heads": 1, **UNTURNED},
    "an MLP narrower than d_model": {"d_ff": 7},
    "an MLP of one": {"d_ff": 1},
    "five layers": {"n_layers": 5},
}


def sized(design, objective, numbers):
    """The model; NormFormer turns heads only on request."""
    own = dict(numbers)
    if DESIGNS[design][0] == "normformer" and own.pop("rotary_fraction", 0) == 1:
        own["positions"] = "rotary"
    return make(design, objective, **own)


def check_pass(model, rows=2, time=5, source_time=4):
    """Logits have their shape, the loss and every gradient are finite."""
    V = model.config.vocab_size
    x, source = tokens(rows, time, vocabulary=V), source_of(model, rows, source_time)
    assert logits(model, x, **source).shape == (rows, time, V)
    loss = model.loss(x, x.roll(-1, 1), **source)
    assert torch.isfinite(loss)
    model.zero_grad()
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
    return loss


def check_lengths(model):
    for c in constraints(model):
        length = model.get_parameter(c.parameter).detach().norm(dim=c.dim)
        assert length.max() < 1 + 1e-6, c
        assert c.kind == "ball" or length.min() > 1 - 1e-6, c


@pytest.mark.parametrize(("case", "size"), [*enumerate(SIZES)])
@pytest.mark.parametrize("design", DESIGNS)
def test_every_size_that_the_equations_allow(design, case, size):
    model = sized(design, in_turn(design, case), SIZES[size])
    loss = check_pass(model)
    check_lengths(model)
    if model.config.vocab_size == 1:
        assert loss == 0


@OF_EACH
def test_one_token_in_one_row(design, objective):
    check_pass(make(design, objective), rows=1, time=1, source_time=1)


@OF_EACH
def test_many_rows_are_each_row_alone(design, objective):
    model = make(design, objective).double().eval()
    x, source = tokens(3, 5), source_of(model, rows=3)
    together = logits(model, x, **source)
    for row in range(3):
        mine = {key: value[row : row + 1] for key, value in source.items()}
        alone = logits(model, x[row : row + 1], **mine)
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("d_ff", [0, -1])
@pytest.mark.parametrize("design", DESIGNS)
def test_an_mlp_without_width_is_refused(design, d_ff):
    with pytest.raises(UserError, match=rf"model\.d_ff must be at least 1: {d_ff}"):
        make(design, d_ff=d_ff)


RULES = ("lerp", "slerp", "riemannian", "lerp_nu", "add", "gated")
RESIDUALS = [("ngpt", {"residual": rule}) for rule in RULES]
VARIANTS = [
    *((design, {}) for design in DESIGNS if design != "ngpt"),
    *RESIDUALS,
    ("ngpt", {"normalize_in_forward": True}),
    ("angpt", {"attention_factor": True}),
    ("normformer", {"qkv_ln": True}),
]


def named(value):
    """A design, or what it sets."""
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())


@pytest.mark.parametrize(("design", "numbers"), VARIANTS, ids=named)
def test_zero_matrices_rows_and_columns(design, numbers):
    """So zero embeddings, queries, keys, values, sublayers' outputs and logits: no NaN.

    An encoder and decoder have every matrix that there is, with a causal mask and an open one.
    """
    model = make(design, "seq2seq", **numbers)
    for p in [p for p in model.parameters() if p.ndim == 2]:
        start = p.detach().clone()
        some = start.clone()
        some[0], some[:, 0] = 0, 0
        for value in (some, torch.zeros_like(start), start):
            p.data.copy_(value)
            if value is not start:
                check_pass(model)


@pytest.mark.parametrize(("design", "numbers"), VARIANTS, ids=named)
def test_a_model_of_zeros(design, numbers):
    model = make(design, "seq2seq", **numbers)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    constrain(model, optimizer)
    for _ in range(2):
        check_pass(model)
        optimizer.step()
        for name, p in model.named_parameters():
            assert torch.isfinite(p).all(), name
