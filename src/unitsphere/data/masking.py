"""Masked language modelling: some tokens are hidden, the model says what they were.

BERT (Devlin et al. 2019, arXiv 1810.04805, §3.1) chooses 15% of the tokens; of these 80% become the
mask token, 10% a random token, 10% stay as they are. As in RoBERTa (Liu et al. 2019, arXiv
1907.11692, §4.1-4.2) sequences are packed across documents and masked anew each time they are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.config import MaskConfig
from unitsphere.data.windows import Window
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np

EVALUATION_SEED = 0
"""The seed of the masks of every evaluation: the same tokens are hidden from every model."""


@dataclass(frozen=True)
class Masked:
    """Rows of one separator and context − 1 tokens, some of them hidden.

    vocab_size is the tokenizer's: the mask token is that id, one beyond the last. A window's masks
    follow from (seed, epoch, its number) alone. Raises a `UserError` for a context below 2.
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
                f"a context of {self.context} has no room for a masked token beside the separator "
                "that begins each sequence: it must be at least 2"
            )

    @property
    def stride(self) -> int:
        return self.context - 1

    def batch(self, windows: Sequence[Window]) -> Batch:
        """The windows as rows; targets are IGNORED except where a token was chosen.

        A window that is shorter than the others is filled up with separators that `mask` hides.
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

        # The number comes first and from 1 on: no draw is that of `Batches`' permutations.
        generator = np.random.default_rng([1 + window.number, window.epoch, self.seed])
        tokens = window.tokens.astype("int64")
        return mask_tokens(tokens, self.separator, self.vocab_size, self.config, generator)


def mask_tokens(
    tokens: np.ndarray,
    separator: int,
    vocab_size: int,
    config: MaskConfig,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """What the model is shown and what it is asked for, int64 [n] each, of tokens [n].

    Of the tokens that are no separators config.fraction are chosen: the number is rounded up or
    down at random so that it is right on average, but at least one. A chosen token becomes
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
