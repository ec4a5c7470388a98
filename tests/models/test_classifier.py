"""The classifier: pooling, padding, and what it declares."""

import pytest
import torch

from unitsphere.models.classifier import Classifier, pool
from unitsphere.models.constraint import declarations
from unitsphere.models.registry import ARCHITECTURES, build

REAL = torch.tensor([[True, True, False], [True, True, True]])


def made(name: str, objective: str, how: str) -> Classifier:
    body = build(name, objective=objective, vocab_size=64, d_model=32, n_layers=2, n_heads=2)
    classifier = Classifier(body, 3, how)
    classifier.head.reset(torch.Generator().manual_seed(0))
    return classifier.eval()


def test_pooling_by_hand():
    h = torch.arange(12.0).reshape(2, 3, 2)
    assert pool(h, REAL, "first").tolist() == [[0, 1], [6, 7]]
    assert pool(h, REAL, "last").tolist() == [[2, 3], [10, 11]]
    assert pool(h, REAL, "mean").tolist() == [[1, 2], [8, 9]]


@pytest.mark.parametrize("how", ["first", "mean", "last"])
@pytest.mark.parametrize("objective", ["clm", "mlm"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_changes_nothing(name, objective, how):
    classifier = made(name, objective, how)
    tokens = torch.randint(1, 64, (2, 5), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([tokens, torch.tensor([[0, 0], [9, 3]])], 1)
    with torch.no_grad():
        short = classifier(tokens, torch.ones(2, 5, dtype=torch.bool))
        long = classifier(padded, torch.arange(7).expand(2, 7) < 5)
    torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-4)


def test_an_encoder_looks_at_what_follows_and_a_causal_model_does_not():
    one, two = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6, 8]])
    real = torch.ones(1, 3, dtype=torch.bool)
    with torch.no_grad():
        causal, both = (made("ngpt", objective, "first") for objective in ("clm", "mlm"))
        assert torch.equal(causal(one, real), causal(two, real))
        assert not torch.allclose(both(one, real), both(two, real))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_head_is_declared_free_and_the_body_as_it_is(name):
    classifier = made(name, "mlm", "mean")
    found = declarations(classifier)
    assert found["head.weight"].role == "head"
    assert found["head.weight"].bound is None
    body = {f"body.{key}": declared for key, declared in declarations(classifier.body).items()}
    assert {key: found[key] for key in body} == body
    assert found.keys() - body.keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_the_head_sees_entries_of_size_one_whatever_the_body(name):
    classifier = made(name, "mlm", "mean")
    seen = []
    classifier.head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    classifier(torch.randint(1, 64, (4, 9)), torch.ones(4, 9, dtype=torch.bool))
    torch.testing.assert_close(seen[0].square().mean(-1), torch.ones(4))
