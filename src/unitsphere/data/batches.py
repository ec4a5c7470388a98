"""Batches as a pure function of (seed, step).

The stream is covered by windows of context + 1 tokens, `context` apart: each token but the very
first is a target in exactly one window. An epoch is a permutation of the windows that depends on
(seed, epoch) alone; the epochs, laid end to end, are cut into batches of `rows` windows. So a
row's content does not depend on who asks for it, and any number of processes may share a batch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Batches:
    """Batches of `rows` windows of `context` tokens in an order given by `seed`.

    The last window may be shorter than the others; its inputs are filled up with the separator and
    its targets with IGNORED. Raises a `UserError` if there are too few tokens: a training split
    needs one whole sequence, a validation split two tokens.
    """

    def __init__(self, shards: Shards, context: int, rows: int, seed: int) -> None:
        if context < 1 or rows < 1 or seed < 0:
            raise UserError(
                "context and rows are at least 1 and the seed at least 0, "
                f"not {context}, {rows} and {seed}"
            )
        needed = context + 1 if shards.split == "train" else 2
        if shards.n_tokens < needed:
            raise UserError(
                f"the {shards.split} split of {shards.folder} has {shards.n_tokens} tokens, fewer "
                f"than the {needed} of one sequence: use more text or a shorter data.context"
            )
        self.shards, self.context, self._rows, self.seed = shards, context, rows, seed
        self.n_windows = -(-(shards.n_tokens - 1) // context)

    def batch(self, step: int) -> Batch:
        """The batch of a step: inputs and targets [rows, context]."""
        return self.rows(step, 0, self._rows)

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of a step's batch from row `first` on."""
        import torch

        inputs = torch.full((count, self.context), self.shards.separator)
        targets = torch.full((count, self.context), IGNORED)
        for row in range(count):
            window = torch.from_numpy(self._window(step * self._rows + first + row))
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        return Batch(inputs, targets)

    def _window(self, index: int) -> np.ndarray:
        epoch, place = divmod(index, self.n_windows)
        start = int(_permutation(self.n_windows, self.seed, epoch)[place]) * self.context
        return self.shards[start : start + self.context + 1].astype("int64")


@functools.lru_cache(maxsize=2)  # A batch may lie across two epochs.
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(size)
