"""What every architecture promises as an encoder and as an encoder–decoder."""

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, declarations
from unitsphere.models.registry import ARCHITECTURES, build, build_from, count_by_role, lay_out

SMALL = {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 2}
EVERY = pytest.mark.parametrize("name", ARCHITECTURES)


def tokens(rows=2, time=11, seed=0):
    return torch.randint(0, 50, (rows, time), generator=torch.Generator().manual_seed(seed))


def randomised(name, objective, **numbers):
    """A model in double whose parameters have left their start."""
    model = build(name, objective=objective, **SMALL, **numbers).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@EVERY
def test_every_token_of_an_encoder_sees_every_other(name):
    model, x = randomised(name, "mlm"), tokens()
    for place in (0, 10):
        y = x.clone()
        y[:, place] = (y[:, place] + 1) % 50
        moved = (model(x) - model(y)).abs().amax(dim=(0, 2))
        assert (moved > 1e-6).all()


@EVERY
def test_an_encoder_is_the_causal_model_with_an_open_mask(name):
    encoder, causal = randomised(name, "mlm"), randomised(name, "clm")
    assert encoder.state_dict().keys() == causal.state_dict().keys()
    equal(encoder(tokens()), causal(tokens(), mask=torch.ones(11, 11).bool()))


@EVERY
def test_masked_padding_changes_nothing_for_an_encoder(name):
    model, x = randomised(name, "mlm"), tokens(1, 6)
    padded = torch.cat([x, tokens(1, 3, seed=9)], dim=1)
    real = (torch.arange(9) < 6)[None]
    equal(model(padded, mask=real[:, None, None, :])[:, :6], model(x))
    left = torch.cat([tokens(1, 3, seed=9), x], dim=1)
    equal(model(left, left_padding=torch.tensor([3]))[:, 3:], model(x))


@EVERY
def test_padding_of_the_source_changes_nothing(name):
    model, source, x = randomised(name, "seq2seq"), tokens(1, 6), tokens(1, 4, seed=3)
    padded = torch.cat([source, tokens(1, 3, seed=9)], dim=1)
    real = (torch.arange(9) < 6)[None]
    memory, plain = model.encode(padded, real), model.encode(source)
    equal(memory.h[:, :6], plain.h)
    equal(model(x, memory=memory), model(x, memory=plain))


@EVERY
def test_the_target_sees_the_whole_source_and_no_future(name):
    model, source, x = randomised(name, "seq2seq"), tokens(), tokens(time=7, seed=3)
    logits = model(x, memory=model.encode(source))
    assert logits.shape == (2, 7, 50)
    for place in (0, 10):
        other = source.clone()
        other[:, place] = (other[:, place] + 1) % 50
        moved = (model(x, memory=model.encode(other)) - logits).abs().amax(dim=(0, 2))
        assert (moved > 1e-6).all()
    later = x.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 50
    equal(model(later, memory=model.encode(source))[:, :4], logits[:, :4])


@EVERY
def test_cross_attention_knows_no_positions(name):
    """The order of the memory's tokens is the encoder's business alone."""
    model, source, x = randomised(name, "seq2seq"), tokens(), tokens(time=7, seed=3)
    memory = model.encode(source)
    turned = type(memory)(memory.h.flip(1), None)
    equal(model(x, memory=turned), model(x, memory=memory))


@EVERY
def test_cached_decoding_equals_uncached(name):
    model, source, x = randomised(name, "seq2seq"), tokens(), tokens(time=7, seed=3)
    real = torch.arange(11) < torch.tensor([[11], [6]])
    memory = model.encode(source, real)
    cache = model.new_cache(2, 7)
    parts = [model(part, cache, memory=memory) for part in (x[:, :3], x[:, 3:4], x[:, 4:])]
    equal(torch.cat(parts, 1), model(x, memory=memory))


@EVERY
def test_rows_of_cache_and_memory_can_be_chosen_again(name):
    model, source, x = randomised(name, "seq2seq"), tokens(), tokens(time=7, seed=3)
    real, rows = torch.arange(11) < torch.tensor([[11], [6]]), torch.tensor([1, 1, 0])
    memory, cache = model.encode(source, real), model.new_cache(2, 7)
    model(x[:, :4], cache, memory=memory)
    cache.reorder(rows)
    chosen = model(x[rows, 4:], cache, memory=memory.select(rows))
    equal(chosen, model(x, memory=memory)[rows, 4:])


@EVERY
def test_seq2seq_loss_gradients_and_constraints(name):
    model, source, x = build(name, objective="seq2seq", **SMALL), tokens(), tokens(time=7, seed=3)
    real = torch.arange(11) < torch.tensor([[11], [6]])
    targets = x.roll(-1, 1)
    targets[:, -1] = -100
    plain = model.loss(x, targets, source=source, source_mask=real)
    smooth = model.loss(x, targets, source=source, source_mask=real, label_smoothing=0.1)
    log_p = torch.log_softmax(model(x, memory=model.encode(source, real))[:, :-1], -1)
    torch.testing.assert_close(smooth, 0.9 * plain - 0.1 * log_p.mean())
    smooth.backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
    assert declarations(model).keys() == dict(model.named_parameters()).keys()
    lengths = {
        c.parameter: model.get_parameter(c.parameter).norm(dim=c.dim) for c in constraints(model)
    }
    assert all((length - 1).abs().max() < 1e-6 for length in lengths.values())
    if name in ("ngpt", "angpt"):
        assert any("cross" in key for key in lengths)
        assert any("encoder" in key for key in lengths)


@EVERY
def test_losses_take_masks(name):
    model, x = randomised(name, "clm"), tokens()
    document = torch.arange(11) >= 5
    apart = (document[:, None] == document) & torch.ones(11, 11).tril().bool()
    targets, other = x.roll(-1, 1), x.clone()
    targets[:, :5] = -100
    other[:, :5] = (x[:, :5] + 1) % 50
    equal(model.loss(x, targets, mask=apart), model.loss(other, targets, mask=apart))
    assert (model.loss(x, targets) - model.loss(other, targets)).abs() > 1e-4


@EVERY
@pytest.mark.parametrize("objective", ["mlm", "seq2seq"])
def test_counts_by_role_are_those_of_the_model(name, objective):
    model = build(name, objective=objective, **{**SMALL, "n_layers": 3})
    counted = count_by_role(lay_out(name, model.config, objective))
    assert sum(counted.values()) == sum(p.numel() for p in model.parameters())
    late = build_from(name, model.config, "meta", objective=objective)
    assert late.state_dict().keys() == model.state_dict().keys()


def test_misuse_is_one_line():
    causal, encoder = build("ngpt", **SMALL), build("ngpt", objective="mlm", **SMALL)
    both = build("ngpt", objective="seq2seq", **SMALL)
    with pytest.raises(UserError, match="clm has no separate encoder"):
        causal.encode(tokens())
    with pytest.raises(UserError, match="clm takes no memory"):
        causal(tokens(), memory=both.encode(tokens()))
    with pytest.raises(UserError, match="seq2seq needs memory"):
        both(tokens())
    with pytest.raises(UserError, match="has no cache"):
        encoder(tokens(), encoder.new_cache(2, 11))


def test_dropout_drops_in_training_alone():
    model = build("normformer", **SMALL, dropout=0.5)
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))
    model.train()
    torch.manual_seed(0)
    embedded = model.embed(tokens(), torch.arange(11))
    whole = model.eval().embed(tokens(), torch.arange(11))
    kept = embedded != 0
    assert 0.4 < kept.double().mean() < 0.6
    torch.testing.assert_close(embedded[kept], 2 * whole[kept])
    for name in ("dropout", "attention_dropout"):
        with pytest.raises(UserError, match=rf"model\.{name} must be at least 0 and below 1: 1\.0"):
            build("normformer", **SMALL, **{name: 1.0})


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("objective", ["clm", "mlm", "seq2seq"])
def test_attention_dropout_drops_weights_only_in_training(norm, objective):
    model, plain = (
        build("normformer", objective=objective, **SMALL, norm=norm, attention_dropout=p)
        for p in (0.5, 0.0)
    )
    plain.load_state_dict(model.state_dict())
    source = {"source": tokens()} if objective == "seq2seq" else {}

    def loss(model, seed=0):
        torch.manual_seed(seed)
        return model.loss(tokens(), tokens(), **source)

    assert not torch.equal(loss(model), loss(plain))
    assert not torch.equal(loss(model), loss(model, seed=1))
    assert torch.equal(loss(model), loss(model))
    assert torch.equal(loss(model.eval()), loss(plain))


def test_designs_without_attention_dropout_refuse_it():
    with pytest.raises(UserError, match="has no setting 'attention_dropout'"):
        build("gpt", **SMALL, attention_dropout=0.5)


def test_an_objective_that_there_is_none_of_is_refused():
    """The trunk would build a causal model for it."""
    with pytest.raises(UserError, match="unknown objective 'MLM'"):
        build("ngpt", objective="MLM", vocab_size=50)  # pyright: ignore[reportArgumentType]
