"""A batch, and how an objective makes one of windows of a token stream.

`Batch` is what a model sees and what it has to predict, for every objective. A `Form` says where
windows begin and end and what a model is asked about each: `NextToken` (clm) or `Masked` (mlm).
Training and evaluation cut the stream in the same way; only the order differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from unitsphere.data.config import MaskConfig
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

IGNORED = -100
"""A target that is not scored."""
EVALUATION_SEED = 0
"""The seed of the masks of every evaluation: the same tokens are hidden from every model."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to learn from or to score; the first dimension of every tensor is the row."""

    inputs: Tensor
    """int64 [rows, time]"""
    targets: Tensor
    """int64 [rows, time]; IGNORED where nothing is to be predicted"""
    source: Tensor | None = None
    """int64 [rows, source time], the input of the encoder in an encoder–decoder"""
    source_mask: Tensor | None = None
    """bool [rows, source time], true for real tokens; none: all are real"""
    mask: Tensor | None = None
    """bool [rows, 1, 1, time] or [rows, 1, time, time], true where an input is attended to; none:
    the model's own rule (a decoder attends to the past, an encoder to all)"""
    documents: Tensor | None = None
    """int64 [rows, time], a number for each document of a row; an input attends only
    to its own document; none: to the whole row"""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def scored(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())

    def keywords(self) -> dict[str, Any]:
        """The model's keyword arguments, in addition to inputs and targets."""
        names = ("source", "source_mask", "mask", "documents")
        found = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def split(self, rows: int) -> Iterator[Batch]:
        """The batch in parts of `rows` rows, the last perhaps smaller."""
        for first in range(0, len(self), rows):
            yield self.take(first, first + rows)

    def take(self, first: int, end: int) -> Batch:
        """The rows from `first` to before `end`."""
        return Batch(**{name: t[first:end] for name, t in self._tensors().items()})

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return Batch(**{name: t.to(device) for name, t in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "targets": self.targets} | self.keywords()


class Window(NamedTuple):
    """A section of the stream: its tokens, its number in the stream, and the epoch."""

    tokens: np.ndarray
    number: int
    epoch: int = 0


def count_windows(n_tokens: int, form: Form) -> int:
    """How many windows cover a stream."""
    return -(-(n_tokens - form.overlap) // form.stride)


@dataclass(frozen=True)
class NextToken:
    """Causal language modelling: each token of a window is predicted from those before it.

    A window has context + 1 tokens and starts with the last token of the window before, so each
    token except the first of the stream is a target once. A short window is padded with separators,
    which are IGNORED as targets. Separators are targets only with `score_separators`: evaluations
    leave them out, so that the losses are those of the text's own bytes. With `apart` the batch
    says which document each input belongs to: a separator starts one, and a window may start
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
        """The windows as rows, [rows, context]."""
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


@dataclass(frozen=True)
class Masked:
    """Rows of one separator and context − 1 tokens, some of them hidden.

    vocab_size is the tokenizer's: the mask token is that id, one beyond the last. A window's masks
    depend only on (seed, epoch, its number). Raises a `UserError` for a context below 2.
    """

    context: int
    separator: int
    vocab_size: int
    config: MaskConfig
    seed: int
    overlap = 0
    likelihood = False

    def __post_init__(self) -> None:
        if self.context < 2:
            raise UserError(
                f"a context of {self.context} has no room for a masked token and the separator "
                "that begins each sequence: it must be at least 2"
            )

    @property
    def stride(self) -> int:
        return self.context - 1

    def batch(self, windows: Sequence[Window]) -> Batch:
        """The windows as rows; targets are IGNORED except where a token was chosen.

        A short window is padded with separators, which `mask` hides.
        """
        import torch

        inputs = torch.full((len(windows), self.context), self.separator)
        targets = torch.full((len(windows), self.context), IGNORED)
        lengths = torch.tensor([1 + len(window.tokens) for window in windows])
        for row, window in enumerate(windows):
            shown, hidden = self._mask(window)
            inputs[row, 1 : len(shown) + 1] = torch.from_numpy(shown)
            targets[row, 1 : len(hidden) + 1] = torch.from_numpy(hidden)
        if int(lengths.min()) == self.context:
            return Batch(inputs, targets)
        real = torch.arange(self.context) < lengths[:, None]
        return Batch(inputs, targets, mask=real[:, None, None])

    def _mask(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        # The number comes first and from 1 on: no draw is one of `Batches`' permutations.
        generator = np.random.default_rng([1 + window.number, window.epoch, self.seed])
        tokens = window.tokens.astype("int64")
        return mask_tokens(tokens, self.separator, self.vocab_size, self.config, generator)


Form = NextToken | Masked
"""How an objective turns windows into inputs and targets, by `batch`.

stride: tokens from the start of a window to the start of the next. overlap: tokens that two
neighbours share, so a window has stride + overlap tokens (the last of the stream may have fewer).
likelihood: whether the losses add up to the loss of the whole text, which bits per byte need.
"""


def mask_tokens(
    tokens: np.ndarray,
    separator: int,
    vocab_size: int,
    config: MaskConfig,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """What the model is shown and what it must predict, int64 [n] each, of tokens [n].

    config.fraction of the tokens that are not separators are chosen: the number is rounded up or
    down at random so that it is right on average, but is at least one. A chosen token becomes
    `vocab_size` (the mask), any token but the separator, or stays, by chance.
    """
    import numpy as np

    candidates = np.flatnonzero(tokens != separator)
    wanted = max(int(config.fraction * len(candidates) + generator.random()), 1)
    chosen = generator.permutation(candidates)[:wanted]
    fate = generator.random(len(chosen))
    other = generator.integers(vocab_size - 1, size=len(chosen))
    other += other >= separator
    hidden, swapped = fate < config.masked, fate >= 1 - config.random
    shown, asked = tokens.copy(), np.full_like(tokens, IGNORED)
    shown[chosen[hidden]] = vocab_size
    shown[chosen[swapped]] = other[swapped]
    asked[chosen] = tokens[chosen]
    return shown, asked
