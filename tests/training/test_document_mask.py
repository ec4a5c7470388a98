"""data.document_mask: what a run learns from and is validated on, from the key to the loss."""

import dataclasses
import math

import pytest

from unitsphere.data.batch import NextToken
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.corpus import open_corpus
from unitsphere.training.evaluate.text import evaluate
from unitsphere.training.resolve import FREE_KEYS, resolve
from unitsphere.training.run import train

TEXTS = ["Grüße, world.\n" * 3, "", "ü", "a" * 50]


def apart(config, **model):
    """The config with documents kept apart."""
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, document_mask=True),
        model=dataclasses.replace(config.model, **model),
    )


def test_packed_documents_score_as_each_alone():
    """A GPT sees distances alone, so it does not matter where in a row a document stands."""
    model = build("gpt", vocab_size=256, d_model=32, n_layers=2, n_heads=2, seed=3).double()
    separator = ByteTokenizer.separator

    def nats(texts, **how):
        form = NextToken(128, separator, score_separators=False, **how)
        found = evaluate(model, texts, ByteTokenizer(), form, rows=2)
        return found.loss * found.tokens

    alone = sum(nats([text]) for text in TEXTS if text)
    assert math.isclose(nats(TEXTS, apart=True), alone, rel_tol=1e-10)
    assert not math.isclose(nats(TEXTS), alone, rel_tol=1e-6)


def test_batches_and_validation_know_the_documents(tiny):
    config = resolve(apart(tiny()), None)
    corpus = open_corpus(config)
    separator = corpus.tokenizer.separator
    for batch in (corpus.batches.batch(0), corpus.example):
        assert batch.documents is not None
        begins = (batch.inputs == separator).int()
        assert (batch.documents.diff(dim=1) == begins[:, 1:]).all()
    model = build("gpt", vocab_size=config.model.vocab_size, d_model=32, n_layers=2, n_heads=2)
    together = open_corpus(resolve(tiny(), None))
    assert together.batches.batch(0).documents is None
    losses = [c.validate(model, precision="fp32").loss for c in (corpus, together)]
    assert abs(losses[0] - losses[1]) > 1e-4


@pytest.mark.parametrize("architecture", ["ngpt", "normformer"])
def test_a_run_trains_with_documents_window_and_shared_heads(architecture, tiny, tmp_path):
    config = apart(tiny(architecture, micro_batch=2, eval_every=0), window=8, n_kv_heads=1)
    result = train(config, tmp_path / "run")
    assert result.val_loss < 5.2  # below ln 256
    assert train(config, tmp_path / "run").val_loss == result.val_loss
    with pytest.raises(UserError, match=r"data\.document_mask: True -> False"):
        train(
            dataclasses.replace(config, data=dataclasses.replace(config.data, document_mask=False)),
            tmp_path / "run",
        )


def test_what_decides_what_is_seen_may_not_change_when_a_run_resumes():
    assert not FREE_KEYS & {"data.document_mask", "model.window", "model.n_kv_heads"}


@pytest.mark.parametrize("objective", ["mlm", "seq2seq"])
def test_it_is_for_causal_models(objective, tiny):
    with pytest.raises(UserError) as caught:
        apart(tiny("gpt", objective))
    expected = f"data.document_mask is for objective clm, not {objective}: leave it out"
    assert str(caught.value) == expected
