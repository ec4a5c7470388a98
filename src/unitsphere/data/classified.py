"""Labelled texts as tokens: sequences, stratified splits, and padded batches.

A sequence is separator, text, separator; for a pair the second text and a separator follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unitsphere.data.labelled import Example
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Token sequences (int64, each [length]), and how many were cut to fit."""

    tokens: list[np.ndarray]
    truncated: int

    def __len__(self) -> int:
        return len(self.tokens)


class Rows(NamedTuple):
    """A padded batch: tokens [rows, length] int64, and which of them are real (bool)."""

    tokens: Tensor
    real: Tensor


def encode_examples(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Sequences:
    """Each example as at most `length` tokens; of a pair, the longer text is cut first."""
    first = tokenizer.encode_batch([example.text for example in examples])
    seconds = [example.text2 for example in examples if example.text2 is not None]
    pairs = len(seconds) == len(examples)
    second = tokenizer.encode_batch(seconds) if pairs else [None] * len(examples)
    room = length - (3 if pairs else 2)
    if room < 2:
        raise UserError(f"sequences of {length} tokens leave no room for a text")
    tokens, truncated = [], 0
    for a, b in zip(first, second, strict=True):
        sizes = fitting(len(a), 0 if b is None else len(b), room)
        truncated += sum(sizes) < len(a) + (0 if b is None else len(b))
        parts = [a[: sizes[0]]] if b is None else [a[: sizes[0]], b[: sizes[1]]]
        tokens.append(_joined(parts, tokenizer.separator))
    return Sequences(tokens, truncated)


def fitting(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths of two texts cut to `room` in all, token by token from whichever is longer."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first >= second else (shorter, room - shorter)


def _joined(parts: Sequence[np.ndarray], separator: int) -> np.ndarray:
    mark = np.array([separator])
    pieces = [mark] + [piece for part in parts for piece in (part, mark)]
    return np.concatenate([piece.astype(np.int64) for piece in pieces])


def stratified(
    classes: Sequence[int], fraction: float, seed: int, among: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Split indices in two, (rest, part): `part` has that fraction of every class, by `seed`.

    The same classes and seed give the same split. A class of two or more is in both; one of a
    single example stays in the rest. `among` are the indices to split, by default all.
    """
    generator = np.random.default_rng(seed)
    among = range(len(classes)) if among is None else among
    rest: list[int] = []
    part: list[int] = []
    for wanted in sorted({classes[i] for i in among}):
        members = np.array([i for i in among if classes[i] == wanted])
        generator.shuffle(members)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        part += members[:count].tolist()
        rest += members[count:].tolist()
    return sorted(rest), sorted(part)


def padded_rows(tokens: Sequence[np.ndarray], separator: int) -> Rows:
    """Sequences side by side, filled up with the separator on the right to the longest."""
    import torch

    filled = torch.full((len(tokens), max(map(len, tokens))), separator, dtype=torch.int64)
    real = torch.zeros(filled.shape, dtype=torch.bool)
    for row, sequence in enumerate(tokens):
        filled[row, : len(sequence)] = torch.from_numpy(sequence)
        real[row, : len(sequence)] = True
    return Rows(filled, real)


def shuffled_batches(
    indices: Sequence[int], rows: int, epochs: int, seed: int
) -> Iterator[list[int]]:
    """Batches of indices, each epoch in a new order by (seed, epoch); its last may be smaller."""
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(indices))
        for start in range(0, len(order), rows):
            yield [indices[i] for i in order[start : start + rows]]
