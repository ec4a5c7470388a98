"""Folded for inference: the same outputs without the factors, for every architecture and switch."""

import copy

import pytest
import torch
from oracle_cases import CASES, batch, distance, setup

from unitsphere.inference.generate import generate
from unitsphere.models.constraint import constraints
from unitsphere.models.folding import fold_
from unitsphere.models.parts import Scale
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


@pytest.mark.parametrize("case", ["gpt-plus", "ngpt", "angpt", "normformer"])
def test_a_folded_model_continues_a_prompt_with_the_same_tokens(case):
    model, *_ = setup(case)
    prompts = [[1, 2, 3], [4, 5]]
    expected = generate(model, prompts, 4)
    assert generate(fold_(model), prompts, 4) == expected
