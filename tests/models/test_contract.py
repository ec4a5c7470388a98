"""What every architecture of the registry promises, however it is built inside."""

from fractions import Fraction

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.models.config import rotary_size
from unitsphere.models.constraint import constraints, declarations
from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import ARCHITECTURES, architecture, build

SMALL = {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 2}
EVERY = pytest.mark.parametrize("name", ARCHITECTURES)


def tokens(rows=2, time=11, seed=0):
    return torch.randint(0, 50, (rows, time), generator=torch.Generator().manual_seed(seed))


def randomised(name):
    """A model in double whose parameters have left their start: no scale is 0 or 1 any more."""
    model = build(name, **SMALL).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


@EVERY
def test_forward_and_gradients(name):
    model = build(name, **SMALL)
    x = tokens()
    logits = model(x)
    assert logits.shape == (2, 11, 50)
    model.loss(x, x.roll(-1, 1)).backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key


@EVERY
def test_no_token_sees_the_future(name):
    model = randomised(name)
    x = tokens()
    y = x.clone()
    y[:, 6:] = (y[:, 6:] + 1) % 50
    torch.testing.assert_close(model(x)[:, :6], model(y)[:, :6], rtol=0, atol=1e-12)
    assert (model(x)[:, 6:] - model(y)[:, 6:]).abs().max() > 1e-3


@EVERY
def test_the_seed_decides_the_weights(name):
    a, b, c = (build(name, seed=s, **SMALL).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


@EVERY
def test_cached_logits_equal_uncached_ones(name):
    model = randomised(name)
    x = tokens()
    cache = model.new_cache(2, 11)
    parts = [model(part, cache) for part in (x[:, :4], x[:, 4:5], x[:, 5:8], x[:, 8:])]
    assert cache.length == 11
    torch.testing.assert_close(torch.cat(parts, 1), model(x), rtol=0, atol=1e-12)


@EVERY
def test_left_padding_changes_nothing(name):
    model = randomised(name)
    x = tokens(1, 6)
    padded = torch.cat([tokens(1, 3, seed=9), x], dim=1)
    logits = model(padded, left_padding=torch.tensor([3]))[:, 3:]
    torch.testing.assert_close(logits, model(x), rtol=0, atol=1e-12)


@EVERY
def test_a_mask_takes_the_place_of_causality(name):
    model, x = randomised(name), tokens()
    everyone = torch.ones(11, 11).bool()
    torch.testing.assert_close(model(x, mask=everyone.tril()), model(x), rtol=0, atol=1e-12)
    y = x.clone()
    y[:, 10] = (y[:, 10] + 1) % 50
    assert (model(x, mask=everyone)[:, 0] - model(y, mask=everyone)[:, 0]).abs().max() > 1e-6


@EVERY
def test_bf16_autocast_stays_near_fp32(name):
    model = build(name, **SMALL)
    exact = model.loss(tokens(), tokens())
    with torch.autocast("cpu", torch.bfloat16):
        close = model.loss(tokens(), tokens())
    assert close.dtype == torch.float32
    assert abs(close - exact) < 0.02 * exact


@EVERY
def test_every_parameter_is_declared_once_and_tying_removes_the_head(name):
    tied, untied = (build(name, tied=tied, **SMALL) for tied in (True, False))
    for model in (tied, untied):
        assert declarations(model).keys() == dict(model.named_parameters()).keys()
    heads = [n for n, d in declarations(untied).items() if d.role == "head"]
    assert len(heads) == 1
    assert not [n for n, d in declarations(tied).items() if d.role == "head"]


def test_an_undeclared_parameter_is_an_error():
    model = build("ngpt", **SMALL)
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"'extra\.weight' of Linear is declared neither"):
        constraints(model)


@EVERY
def test_sizes_that_cannot_be_are_refused(name):
    with pytest.raises(UserError, match=r"not divisible by model\.n_heads 5"):
        build(name, vocab_size=50, d_model=32, n_layers=1, n_heads=5)
    with pytest.raises(UserError, match=r"has no setting 'd_modle' .*'d_model'"):
        build(name, d_modle=32)
    with pytest.raises(UserError, match=r"'model\.d_model' must be an integer, not 32\.0"):
        build(name, **(SMALL | {"d_model": 32.0}))


@EVERY
def test_targets_of_another_shape_are_refused(name):
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with pytest.raises(UserError, match=r"one shape, not \[2, 8\] and \[2, 7\]"):
        build(name, **SMALL).loss(tokens, tokens[:, 1:])
    with pytest.raises(UserError, match=r"tokens must be \[batch, time\], not of shape \[8\]"):
        build(name, **SMALL).loss(tokens[0], tokens[0])


def test_a_table_of_a_config_may_be_a_dict():
    as_dict, as_config = (
        build("ngpt", **SMALL, alpha=a) for a in ({"init": 0.1}, ScaleConfig(init=0.1))
    )
    assert as_dict.config == as_config.config


@pytest.mark.parametrize("name", ["gpt", "ngpt", "angpt", "rezero", "lnscaling", "dyt"])
def test_rope_rotates_the_largest_even_number_of_dimensions(name):
    sizes = {"vocab_size": 50, "n_layers": 1, "n_heads": 2}
    model = build(name, **sizes, d_model=14, rotary_fraction=1.0)
    assert model.d_rot == 6
    assert model(torch.arange(5)[None]).isfinite().all()
    for d_k, fraction, d_rot in [(64, 0.5, 32), (20, 0.4, 8), (10, 0.5, 4), (14, 0.5, 6)]:
        size = {**sizes, "d_model": 2 * d_k, "rotary_fraction": fraction}
        assert build(name, **size, device="meta").d_rot == d_rot
    with pytest.raises(UserError, match=r"rotary_fraction must be between 0 and 1: 1\.5"):
        build(name, **sizes, d_model=16, rotary_fraction=1.5)


def test_a_rotary_size_is_not_lost_to_rounding():
    exact = [2 * int(Fraction(n, 100) * 200 / 2) for n in range(101)]
    assert [rotary_size(200, n / 100) for n in range(101)] == exact


def test_an_unknown_architecture_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown architecture 'ngtp' \(did you mean 'ngpt'\?\)"):
        architecture("ngtp")


@EVERY
@pytest.mark.parametrize("key", ["d_model", "n_layers", "n_heads"])
def test_a_model_without_width_layers_or_heads_is_refused(name, key):
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2}
    with pytest.raises(UserError, match=rf"model\.{key} must be at least 1: 0"):
        build(name, vocab_size=50, **sizes | {key: 0})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt", "init_std", -1.0),
        ("rezero", "embed_std", float("nan")),
        ("normformer", "norm_eps", -1e-5),
        ("ngpt", "rope_base", 0.0),
        ("angpt", "rope_base", float("inf")),
    ],
)
def test_numbers_that_would_make_nan_of_a_model_are_refused(name, key, value):
    """It was torch's error, or a loss that is NaN and advice on the learning rate."""
    said = rf"model\.{key} must be a number (above 0|from 0 on): {value}"
    with pytest.raises(UserError, match=said):
        build(name, vocab_size=8, **{key: value})
