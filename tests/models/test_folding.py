"""Folded for inference: the same outputs without the factors, for every architecture and switch."""

import copy

import pytest
import torch
from oracle_cases import CASES, batch, distance, setup
from torch.utils._python_dispatch import TorchDispatchMode

from unitsphere.inference.generate import generate
from unitsphere.models.constraint import constraints
from unitsphere.models.parts import Scale
from unitsphere.models.plans import fold_
from unitsphere.models.registry import build
from unitsphere.ops import linear


@pytest.mark.parametrize("case", CASES)
def test_a_folded_model_says_the_same(case, monkeypatch):
    model, *_ = setup(case)
    tokens, _ = batch()
    with torch.no_grad():
        expected = model(tokens)
    folded = fold_(copy.deepcopy(model))
    assert distance(folded(tokens), expected) < 1e-12
    monkeypatch.setattr(linear, "TOKENS_PER_WIDTH", 0)  # as for a long prompt
    assert distance(folded(tokens), expected) < 1e-12
    assert not any(p.requires_grad for p in folded.parameters())
    assert not folded.training
    assert constraints(folded) == [] or case.startswith(("ngpt", "angpt"))


@pytest.mark.parametrize("case", ["ngpt", "angpt"])
def test_a_seq2seq_model_folds_its_encoder_and_cross_attention(case):
    model, *_ = setup(case, "seq2seq")
    tokens, _ = batch()
    with torch.no_grad():
        expected = model(tokens, memory=model.encode(tokens))
    fold_(model)
    assert distance(model(tokens, memory=model.encode(tokens)), expected) < 1e-12


@pytest.mark.parametrize("case", ["ngpt", "angpt"])
def test_what_is_folded_is_gone(case):
    model = fold_(setup(case)[0])
    names = dict(model.named_parameters())
    assert not any(".s_u." in name or ".s_nu." in name or "s_z" in name for name in names)
    learned = [m for m in model.modules() if isinstance(m, Scale) and m.stored is not None]
    assert {scale.factor for scale in learned} == {1.0}
    assert {c.parameter for c in constraints(model)} == {"E_in.weight"}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_folded_model_takes_the_weights_of_another(case, assign):
    model, *_ = setup(case)
    tokens, _ = batch()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    fold_(model)
    fold_(other.to("meta") if assign else other)
    other.load_state_dict(model.state_dict(), assign=assign)
    assert torch.equal(other(tokens), model(tokens))


@pytest.mark.parametrize("case", ["gpt-plus", "ngpt", "angpt", "normformer"])
def test_a_folded_model_continues_a_prompt_with_the_same_tokens(case):
    model, *_ = setup(case)
    prompts = [[1, 2, 3], [4, 5]]
    expected = generate(model, prompts, 4)
    assert generate(fold_(model), prompts, 4) == expected


class Counted(TorchDispatchMode):
    """Counts the tensors that operations write, and their elements."""

    def __init__(self):
        super().__init__()
        self.tensors = self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if not function.is_view:
            outputs = found if isinstance(found, tuple) else (found,)
            written = [x.numel() for x in outputs if isinstance(x, torch.Tensor)]
            self.tensors += len(written)
            self.elements += sum(written)
        return found


def work(model, time: int) -> Counted:
    """What a forward pass of one row does."""
    with torch.no_grad(), Counted() as counted:
        model(torch.ones(1, time, dtype=torch.int64))
    return counted


@pytest.mark.parametrize("time", [1, 64])
def test_folded_angpt_does_no_more_than_gpt_plus(time):
    sizes = {"vocab_size": 64, "d_model": 64, "n_layers": 2, "n_heads": 4}
    plus = work(fold_(build("gpt", **sizes, qk_norm=True, rotary_fraction=0.5)), time)
    model = build("angpt", **sizes)
    before, folded = work(model, time), work(fold_(model), time)
    assert before.elements > 1.1 * plus.elements
    assert folded.tensors <= plus.tensors
    assert folded.elements <= plus.elements
