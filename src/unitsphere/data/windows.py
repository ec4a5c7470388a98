"""How an objective reads a stream of tokens: in windows, each a row of a batch.

A `Form` says where windows begin and end and what a model is asked about one. Training
(`Batches`) and evaluation cut the stream the same way and differ in the order alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unitsphere.data.batch import IGNORED, Batch

if TYPE_CHECKING:
    import numpy as np


class Window(NamedTuple):
    """A stretch of the stream: its tokens, its number there, and the epoch that asks for it."""

    tokens: np.ndarray
    number: int
    epoch: int = 0


class Form(Protocol):
    """What an objective makes of windows.

    stride: tokens from a window's begin to the next one's. overlap: tokens that two neighbours
    share, so a window has stride + overlap tokens, the stream's last perhaps fewer.
    likelihood: whether the losses over a text add up to that of the whole text, which bits per
    byte are made of.
    """

    @property
    def stride(self) -> int: ...

    @property
    def overlap(self) -> int: ...

    @property
    def likelihood(self) -> bool: ...

    def batch(self, windows: Sequence[Window]) -> Batch:
        """The windows as rows, [rows, context]."""
        ...


def count_windows(n_tokens: int, form: Form) -> int:
    """How many windows cover a stream."""
    return -(-(n_tokens - form.overlap) // form.stride)


@dataclass(frozen=True)
class NextToken:
    """Causal language modelling: each token of a window is asked for from those before it.

    A window has context + 1 tokens and begins with the last one of the window before, so each token
    but the stream's first is a target once. What a short window leaves open is the separator,
    IGNORED as a target. Separators are targets only where `score_separators`: evaluations
    leave them out, so that the losses are those of the text's own bytes. With `apart` the batch
    says which document each input belongs to: a separator begins one, and a window may begin
    within one.
    """

    context: int
    separator: int
    score_separators: bool
    apart: bool = False
    overlap = 1
    likelihood = True

    @property
    def stride(self) -> int:
        return self.context

    def batch(self, windows: Sequence[Window]) -> Batch:
        import torch

        inputs = torch.full((len(windows), self.context), self.separator)
        targets = torch.full((len(windows), self.context), IGNORED)
        for row, window in enumerate(windows):
            tokens = torch.from_numpy(window.tokens.astype("int64"))
            inputs[row, : len(tokens) - 1] = tokens[:-1]
            targets[row, : len(tokens) - 1] = tokens[1:]
        if not self.score_separators:
            targets.masked_fill_(targets == self.separator, IGNORED)
        documents = (inputs == self.separator).cumsum(1) if self.apart else None
        return Batch(inputs, targets, documents=documents)
