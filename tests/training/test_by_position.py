import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unitsphere.data.batch import NextToken
from unitsphere.data.batches import ShardTokens, TextTokens, stretches
from unitsphere.data.documents import Piece
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import ByteTokenizer, train_bpe
from unitsphere.errors import UserError
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.by_position import edges, losses_by_position, token_losses
from unitsphere.training.evaluate.text import evaluate

SMALL = {"vocab_size": 256, "d_model": 32, "n_layers": 2, "n_heads": 4}
VARIANTS = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "grouped": ("ngpt", {"n_kv_heads": 2}),
    "windowed": ("gpt", {"window": 5}),
}
BYTES = ByteTokenizer()
TEXT = "Grüße, world.\n" * 16


def documents(*texts: str) -> TextTokens:
    """Each text as a document that comes in pieces of 50 characters."""
    pieces = [
        Piece(number, text[begin : begin + 50])
        for number, text in enumerate(texts)
        for begin in range(0, len(text), 50)
    ]
    return TextTokens(pieces, BYTES)


def some_tokens(rows: int, time: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(256, (rows, time + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_through_the_cache_give_the_losses_of_one_pass(variant):
    name, numbers = VARIANTS[variant]
    model = build(name, **SMALL, **numbers).double().eval()
    inputs, targets = some_tokens(2, 32)
    logits = model(inputs)
    whole = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none")
    found = token_losses(model, inputs, targets, chunk=7)  # the last one is shorter
    torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-10)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def largest(time: int, chunk: int) -> int:
    model = build("ngpt", **SMALL).eval()
    inputs, targets = some_tokens(1, time)
    with Largest() as seen:
        token_losses(model, inputs, targets, chunk)
    return seen.elements


def test_memory_is_bounded_by_the_chunk_and_the_cache():
    time, chunk = 2048, 32
    cache, mask, logits = time * SMALL["d_model"], chunk * time, chunk * 256
    assert largest(time, chunk) == max(cache, mask, logits)
    assert largest(time, time) >= time * 256  # one pass holds all logits at once


def test_every_context_scores_the_same_tokens_and_spans_add_up():
    model = build("gpt", **SMALL)
    found = losses_by_position(model, documents(TEXT, "short", TEXT), 0, (4, 16, 32), chunk=8)
    size = len(TEXT.encode()) // 32 * 32 * 2
    for context, one in found.items():
        assert one.context == context
        assert (one.tokens, one.bytes) == (size, size)
        assert one.perplexity == pytest.approx(math.exp(one.loss))
        assert one.bits_per_byte == pytest.approx(one.loss / math.log(2))
        assert sum(span.tokens for span in one.by_position) == size
        assert one.loss * size == pytest.approx(sum(s.loss * s.tokens for s in one.by_position))
    first = {c: one.by_position[0] for c, one in found.items()}
    assert first[4].tokens == 8 * first[32].tokens


def test_one_document_scores_as_evaluate_does():
    model = build("angpt", **SMALL)
    text = TEXT[:64]
    text = text.encode()[:64].decode()
    whole = evaluate(model, [text], BYTES, NextToken(16, 0, score_separators=False), 4)
    found = losses_by_position(model, documents(text), 0, [16], chunk=64)[16]
    assert (found.tokens, found.bytes) == (whole.tokens, whole.bytes)
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    assert found.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-6)


class Uniform(torch.nn.Module):
    """Logits of zero over bytes."""

    device, objective = torch.device("cpu"), "clm"

    def __init__(self, vocab_size=256):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size)

    def forward(self, tokens, cache=None):
        return torch.zeros(*tokens.shape, self.config.vocab_size)

    def new_cache(self, batch, length):
        return None


def test_a_uniform_model_scores_8_bits_a_byte_at_every_position():
    found = losses_by_position(Uniform(), documents(TEXT), 0, (8, 64), chunk=16)
    for one in found.values():
        assert f"{one.bits_per_byte:.6f}" == "8.000000"
        assert {f"{span.perplexity:.3f}" for span in one.by_position} == {"256.000"}


@pytest.mark.parametrize("text", ["สวัสดีชาวโลก", "你好🙂", "e\u0301🏳️\u200d🌈"])
@pytest.mark.parametrize("length", [4, 5, 7])
def test_characters_that_a_stretch_cuts_count_with_all_their_bytes(text, length):
    found = losses_by_position(Uniform(), documents(text * 20), 0, [length])[length]
    assert found.bytes == found.tokens
    assert found.bits_per_byte == pytest.approx(8)


def test_bytes_are_those_of_the_scored_tokens_not_a_mean_over_all_documents():
    """Only the long document is scored, and its tokens have fewer bytes than the others' have."""
    prose = "a merge of letters " * 3
    tokenizer = train_bpe([prose] * 50, 300)
    long = "0123456789abcdef" * 8
    texts = [Piece(number, prose) for number in range(20)] + [Piece(20, long)]
    found = losses_by_position(Uniform(512), TextTokens(texts, tokenizer), 0, [64])[64]
    scored = tokenizer.encode(long)[: found.tokens]
    assert found.bytes == len(tokenizer.decode(scored).encode())
    assert found.bits_per_byte == pytest.approx(9 * found.tokens / found.bytes)


def test_the_validation_split_is_scored_document_by_document(tiny):
    shards = Shards.open(prepared(tiny().data), "val")
    tokens = ShardTokens(shards)
    parts = list(tokens)
    starts = [int(start) for start in shards.document_starts]
    assert [number for number, _ in parts] == list(range(shards.n_documents))
    assert [len(part) for _, part in parts] == [
        end - start - 1 for start, end in zip(starts, [*starts[1:], len(shards)], strict=True)
    ]


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=40), max_size=4),
    st.integers(1, 12),
    st.integers(1, 40) | st.none(),
)
def test_stretches_are_the_begins_of_documents_in_order(texts, length, per_document):
    parts = [
        (number, np.array(text[begin : begin + 5], np.int64))
        for number, text in enumerate(texts)
        for begin in range(0, len(text), 5)
    ]
    expected = []
    for text in texts:
        kept = text if per_document is None else text[:per_document]
        stream = [0, *kept]
        whole = len(kept) // length
        expected += [stream[i * length : (i + 1) * length + 1] for i in range(whole)]
    found = [one.tolist() for one in stretches(iter(parts), 0, length, per_document)]
    assert found == expected


@given(st.integers(1, 5000))
def test_spans_cover_every_position_once(context):
    found = edges(context)
    assert found[0] == (1, 1)
    assert found[-1][1] == context
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(found))
    ends = {last for _, last in found}
    assert {2**k for k in range(13) if 2**k <= context} <= ends


@pytest.mark.parametrize(
    ("contexts", "text", "objective", "message"),
    [
        ((8, 12), TEXT, "clm", "8 does not divide 12"),
        ((4096,), TEXT, "clm", "no document has 4,096 tokens"),
        ((8,), TEXT, "mlm", "objective must be clm"),
    ],
)
def test_what_cannot_be_scored_is_one_line(contexts, text, objective, message):
    model = build("ngpt", objective=objective, **SMALL)
    with pytest.raises(UserError, match=message):
        losses_by_position(model, documents(text), 0, contexts)
