"""Documents as stretches of equal length, none of them across two documents.

What is measured at several context lengths has to be measured on the same tokens: each context
divides the stretch, and what is left of a document behind its last stretch is not used.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from unitsphere.data.shards import Shards
from unitsphere.data.sources import Piece
from unitsphere.data.tokenizer import SAMPLED, STRETCH, STRETCHES, Tokenizer, text_lost

READ = 1 << 16
"""Tokens of shards that are read at a time."""


class DocumentTokens(Protocol):
    """Documents' tokens without separators, in parts: (number of the document, tokens)."""

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]: ...

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of the text for each token; known when all was read."""
        ...

    @property
    def text_lost(self) -> float:
        """`tokenizer.text_lost` of the text; known when all was read."""
        ...


class TextTokens:
    """The tokens of documents that come as text."""

    def __init__(self, pieces: Iterable[Piece], tokenizer: Tokenizer) -> None:
        self.pieces, self.tokenizer = pieces, tokenizer
        self.n_bytes = self.n_tokens = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for piece in self.pieces:
            tokens = np.asarray(self.tokenizer.encode(piece.text), np.int64)
            self.n_bytes += len(piece.text.encode("utf-8"))
            self.n_tokens += len(tokens)
            if len(self.sample) < SAMPLED:
                self.sample.append(piece.text[: STRETCH * STRETCHES])
            yield piece.document, tokens

    @property
    def bytes_per_token(self) -> float:
        return self.n_bytes / max(self.n_tokens, 1)

    @property
    def text_lost(self) -> float:
        return text_lost(self.tokenizer, self.sample)


class ShardTokens:
    """The tokens of a prepared split's documents."""

    def __init__(self, shards: Shards) -> None:
        self.shards, self.text_lost = shards, shards.text_lost

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        begins = [int(start) for start in self.shards.document_starts]
        ends = [*begins[1:], self.shards.n_tokens]
        for document, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            for start in range(begin + 1, end, READ):
                part = self.shards[start : min(start + READ, end)]
                yield document, part.astype(np.int64)

    @property
    def bytes_per_token(self) -> float:
        return self.shards.n_bytes / max(self.shards.n_tokens - self.shards.n_documents, 1)


def stretches(
    documents: Iterable[tuple[int, np.ndarray]],
    separator: int,
    length: int,
    per_document: int | None = None,
) -> Iterator[np.ndarray]:
    """int64 [length + 1] each: a token of context, then `length` tokens to predict.

    The first of a document begins with the separator, every other with the last token of the one
    before. With `per_document` only those within that many tokens from a document's begin.
    """
    held, current, given = np.empty(0, np.int64), None, 0
    for document, tokens in documents:
        if document != current:
            held, current, given = np.array([separator], np.int64), document, 0
        if per_document is not None and given + length > per_document:
            continue
        held = np.concatenate([held, tokens])
        while len(held) > length and (per_document is None or given + length <= per_document):
            yield held[: length + 1]
            held, given = held[length:], given + length
