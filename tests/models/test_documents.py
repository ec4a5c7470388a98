"""Documents that share a row see nothing of each other."""

from typing import Any

import pytest
import torch
from design_cases import DESIGNS, make, scattered, tokens

from unitsphere.errors import UserError
from unitsphere.models.context import SelfContext

EVERY = pytest.mark.parametrize("design", DESIGNS)
CUT, TIME = 4, 10
DOCUMENTS = (torch.arange(TIME) >= CUT).long()[None]


def packed(design, objective="clm", **numbers: Any):
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, **numbers}
    return scattered(make(design, objective, **sizes))


def equal(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@EVERY
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_neither_document_notices_the_other_and_the_first_is_as_alone(design, objective, window):
    model, x = packed(design, objective, window=window), tokens(2, TIME)
    found = model(x, documents=DOCUMENTS.expand(2, TIME))
    equal(found[:, :CUT], model(x[:, :CUT]))
    for changed, kept in ((slice(0, CUT), slice(CUT, TIME)), (slice(CUT, TIME), slice(0, CUT))):
        other = x.clone()
        other[:, changed] = (other[:, changed] + 1) % 24
        moved = model(other, documents=DOCUMENTS.expand(2, TIME)) - found
        assert moved[:, kept].abs().max() < 1e-12
        assert moved[:, changed].abs().max() > 1e-3


@EVERY
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_second_is_as_alone_where_only_distances_count(design, window, dtype):
    """Without nGPT's s_qk by element, which acts after RoPE, and NormFormer's own positions."""
    model = packed(design, window=window)
    if DESIGNS[design][0] == "normformer":
        model = packed(design, window=window, positions="rotary")
    with torch.no_grad():
        for block in model.blocks if design == "ngpt" else ():
            block.attention.s_qk.stored.fill_(0.3)
    model.to(dtype)
    x = tokens(2, TIME)
    found = model(x, documents=DOCUMENTS.expand(2, TIME))
    bound = 1e-10 if dtype == torch.float64 else 1e-5
    alone = model(x[:, CUT:])
    equal(found[:, CUT:] / alone.norm(), alone / alone.norm(), atol=bound)


@pytest.mark.parametrize("switch", [{"token_shift": True}, {"bigram_rows": 50}])
@pytest.mark.parametrize("design", ["gpt", "ngpt", "angpt"])
def test_a_document_s_first_token_takes_nothing_of_the_last_one_s(design, switch):
    model, x, positions = packed(design, **switch), tokens(2, TIME), torch.arange(TIME)
    found = model.start(x, positions, documents=DOCUMENTS.expand(2, TIME))
    equal(found[:, CUT:], model.start(x[:, CUT:], positions[: TIME - CUT]))
    across = model.start(x, positions) - found
    assert across[:, CUT].abs().max() > 1e-3
    equal(across[:, CUT + 1 :], torch.zeros_like(across[:, CUT + 1 :]))
    padded = torch.cat([torch.full((2, 3), 5), x], dim=1)
    equal(model(padded, left_padding=torch.tensor([3, 3]))[:, 3:], model(x))


@pytest.mark.parametrize("design", ["gpt", "ngpt", "angpt"])
def test_a_document_s_first_key_is_not_offset_by_the_last_one_s(design):
    model = packed(design, key_offset=True, rotary_fraction=0.5)
    x = tokens(2, TIME)
    with torch.no_grad():
        for block in model.blocks if design == "ngpt" else ():
            block.attention.s_qk.stored.fill_(0.3)  # s_qk by element acts after RoPE
    found = model(x, documents=DOCUMENTS.expand(2, TIME))
    equal(found[:, CUT:], model(x[:, CUT:]))
    other = x.clone()
    other[:, CUT - 1] = (x[:, CUT - 1] + 1) % 24
    equal(model(other, documents=DOCUMENTS.expand(2, TIME))[:, CUT:], found[:, CUT:])
    padded = torch.cat([torch.full((2, 3), 5), x], dim=1)
    equal(model(padded, left_padding=torch.tensor([3, 3]))[:, 3:], model(x))


def test_rows_have_documents_of_their_own_and_the_loss_is_theirs():
    model, x = packed("angpt", g="layer"), tokens(2, TIME)
    documents = torch.stack([DOCUMENTS[0], (torch.arange(TIME) >= 7).long()])
    found = model(x, documents=documents)
    for row, cut in ((0, CUT), (1, 7)):
        equal(found[row, :cut], model(x[row : row + 1, :cut])[0])
        equal(found[row, cut:], model(x[row : row + 1, cut:])[0])
    log_p = found.log_softmax(-1).gather(-1, x.roll(-1, 1)[..., None])
    equal(model.loss(x, x.roll(-1, 1), documents=documents), -log_p.mean())


def test_one_document_is_no_document_and_a_number_may_come_back():
    model, x = packed("gpt"), tokens(1, 6)
    equal(model(x, documents=torch.full((1, 6), 7)), model(x))
    back = model(x, documents=torch.tensor([[0, 1, 0, 1, 0, 1]]))
    even = torch.arange(6) % 2
    equal(back, model(x, mask=(even == even[:, None]).tril()))


@pytest.mark.parametrize(
    "switch", [{"token_shift": True}, {"bigram_rows": 50}, {"key_offset": True}]
)
@pytest.mark.parametrize("design", ["gpt", "angpt"])
def test_a_source_s_first_token_takes_nothing_of_padding_before_it(design, switch):
    model, x = packed(design, "seq2seq", rotary_fraction=0.5, **switch), tokens(2, TIME)
    real = (torch.arange(TIME + 3) >= 3).expand(2, TIME + 3)
    for number in (5, 6):
        padded = torch.cat([torch.full((2, 3), number), x], dim=1)
        equal(model.encode(padded, real).h[:, 3:], model.encode(x).h)


def test_left_padding_stays_hidden():
    model, x = packed("gpt"), tokens(1, TIME)
    padded = torch.cat([tokens(1, 2, seed=9), x], 1)
    documents = torch.cat([torch.zeros(1, 2).long(), DOCUMENTS], 1)
    found = model(padded, left_padding=torch.tensor([2]), documents=documents)
    equal(found[:, 2:], model(x, documents=DOCUMENTS))


def test_the_keys_that_angpt_counts_are_those_of_the_document(monkeypatch):
    counts, count = [], SelfContext.keys_seen
    monkeypatch.setattr(
        SelfContext, "keys_seen", lambda c, k: counts.append(count(c, k)) or counts[-1]
    )
    packed("angpt", attention_factor=True, window=4)(tokens(1, TIME), documents=DOCUMENTS)
    assert counts[0].flatten().tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize("shape", [(2, TIME + 3), (2, TIME - 1), (3, TIME), (1, TIME), (TIME,)])
@pytest.mark.parametrize("mixer", ["attention", "gdn"])
def test_documents_that_do_not_number_each_token_are_refused(shape, mixer):
    model, x = make("gpt", mixers=mixer), tokens(2, TIME)
    with pytest.raises(UserError, match=r"must have its shape \[2, 10\], not"):
        model(x, documents=torch.zeros(shape, dtype=torch.int64))


def test_caches_and_pairs_do_not_know_documents():
    model, both, x = packed("gpt"), packed("gpt", "seq2seq"), tokens(1, TIME)
    with pytest.raises(UserError, match="not with a cache or with seq2seq"):
        model(x, model.new_cache(1, TIME), documents=DOCUMENTS)
    with pytest.raises(UserError, match="not with a cache or with seq2seq"):
        both(x, memory=both.encode(x), documents=DOCUMENTS)
