import math
import resource
from types import SimpleNamespace

import pytest
import torch

from unitsphere.data.batch import NextToken
from unitsphere.data.documents import Piece
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.evaluate.text import evaluate, evaluate_shards, in_groups, stream_windows

TEXTS = ["Grüße, world.\n" * 20, "", "ü", "a" * 1000]


def causal(context: int) -> NextToken:
    return NextToken(context, ByteTokenizer.separator, score_separators=False)


class Uniform(torch.nn.Module):
    """Logits of zero over V entries."""

    device, max_length = torch.device("cpu"), None

    def __init__(self, vocab_size: int = 256) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size)

    def loss(self, tokens, targets, reduction):
        logits = torch.zeros(*tokens.shape, self.config.vocab_size)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction=reduction
        )


@pytest.mark.parametrize("context", [1, 7, 64, 5000])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_uniform_model_over_bytes_scores_8_bits_a_byte(context, rows):
    found = evaluate(Uniform(), TEXTS, ByteTokenizer(), causal(context), rows)
    size = sum(len(text.encode()) for text in TEXTS)
    assert (found.tokens, found.bytes) == (size, size)
    assert f"{found.bits_per_byte:.4f}" == "8.0000"
    assert found.loss == pytest.approx(math.log(256), rel=1e-6)
    assert found.perplexity == pytest.approx(256, rel=1e-5)


def test_every_text_token_is_a_target_once_and_no_separator_is():
    windows = stream_windows(TEXTS, ByteTokenizer(), causal(16))
    batches = map(causal(16).batch, in_groups(windows, 3))
    targets = torch.cat([b.targets.flatten() for b in batches])
    assert bytes(targets[targets >= 0].tolist()) == "".join(TEXTS).encode()


def test_the_windows_and_rows_do_not_change_what_a_token_is_predicted_from():
    model = build("ngpt", vocab_size=256, d_model=32, n_layers=2, n_heads=2)
    one = evaluate(model, TEXTS, ByteTokenizer(), causal(64), 1)
    many = evaluate(model, TEXTS, ByteTokenizer(), causal(64), 8)
    assert many.loss == pytest.approx(one.loss, rel=1e-5)


def test_a_document_in_pieces_is_the_document():
    pieces = [Piece(0, "abc"), Piece(0, "def"), Piece(1, "gh")]

    def windows(documents):
        found = stream_windows(documents, ByteTokenizer(), causal(4))
        return [(w.tokens.tolist(), w.number) for w in found]

    assert windows(pieces) == windows(["abcdef", "gh"])


def test_a_text_far_shorter_than_the_context_is_not_padded_to_it(monkeypatch):
    model = build("ngpt", vocab_size=256, d_model=32, n_layers=2, n_heads=2)
    loss, widths = model.loss, []

    def watched(inputs, *arguments, **keywords):
        widths.append(inputs.shape[1])
        return loss(inputs, *arguments, **keywords)

    monkeypatch.setattr(model, "loss", watched)
    tokenizer = ByteTokenizer()
    found = [
        evaluate(model, ["The cat sat."], tokenizer, NextToken(context, 0, False), 4)
        for context in (12, 2048)
    ]
    assert widths == [12, 12]
    assert found[0] == found[1]


def test_no_text_is_one_line():
    for texts in ([], ["", ""]):
        with pytest.raises(UserError, match="no text to evaluate"):
            evaluate(Uniform(), texts, ByteTokenizer(), causal(16), 4)


def test_shards_are_scored_as_their_text_is(tiny):
    config = tiny()
    shards = Shards.open(prepared(config.data, progress=False), "val")
    text = ByteTokenizer().decode(shards[0 : shards.n_tokens].tolist())
    model = build("gpt", vocab_size=256, d_model=32, n_layers=2, n_heads=2)
    found = evaluate_shards(model, shards, causal(32), 4)
    assert (found.tokens, found.bytes) == (shards.n_bytes, len(text.encode()))
    uniform = evaluate_shards(Uniform(), shards, causal(32), 4)
    assert f"{uniform.bits_per_byte:.4f}" == "8.0000"


def test_a_part_of_the_shards_is_spread_over_them_and_its_bytes_with_it(tiny):
    shards = Shards.open(prepared(tiny().data, progress=False), "train")
    found = evaluate_shards(Uniform(), shards, causal(32), 4, max_tokens=640)
    assert 600 <= found.tokens <= 640
    assert found.bits_per_byte == pytest.approx(8.0, rel=1e-3)
    everything = evaluate_shards(Uniform(), shards, causal(32), 4, max_tokens=10**9)
    assert everything.tokens == shards.n_bytes


def test_memory_does_not_grow_with_the_text():
    class Free(Uniform):
        def loss(self, tokens, targets, reduction):
            return torch.zeros(())

    def texts(count):
        return (Piece(0, "x" * 50_000) for _ in range(count))

    evaluate(Free(), texts(20), ByteTokenizer(), causal(256), 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    evaluate(Free(), texts(150), ByteTokenizer(), causal(256), 8)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8_000  # KiB; the text is 7.5 MB, its tokens 60 MB
