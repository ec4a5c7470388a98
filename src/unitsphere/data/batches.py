"""Batches as a pure function of (seed, step).

The stream is covered by the windows of a `Form`. An epoch is a permutation of the windows that
depends on (seed, epoch) alone; the epochs, laid end to end, are cut into batches of `rows` windows.
So a row's content does not depend on who asks for it, and any number of processes may share a
batch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from unitsphere.data.batch import Batch
from unitsphere.data.shards import Shards
from unitsphere.data.windows import Form, Window, count_windows
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Batches:
    """Batches of `rows` windows in an order given by `seed`.

    The last window may be shorter than the others. Raises a `UserError` if there are too few
    tokens: a training split needs one whole window, a validation split one target.
    """

    def __init__(self, shards: Shards, form: Form, rows: int, seed: int) -> None:
        if form.stride < 1 or rows < 1 or seed < 0:
            raise UserError(
                "context and rows are at least 1 and the seed at least 0, "
                f"not {form.stride}, {rows} and {seed}"
            )
        needed = form.overlap + (form.stride if shards.split == "train" else 1)
        if shards.n_tokens < needed:
            raise UserError(
                f"the {shards.split} split of {shards.folder} has {shards.n_tokens} tokens, fewer "
                f"than the {needed} of one sequence: use more text or a shorter data.context"
            )
        self.shards, self.form, self._rows, self.seed = shards, form, rows, seed
        self.n_windows = count_windows(shards.n_tokens, form)

    def batch(self, step: int) -> Batch:
        """The batch of a step, [rows, context]."""
        return self.rows(step, 0, self._rows)

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of a step's batch from row `first` on."""
        begin = step * self._rows + first
        return self.form.batch([self._window(begin + row) for row in range(count)])

    def _window(self, row: int) -> Window:
        epoch, place = divmod(row, self.n_windows)
        index = int(permutation(self.n_windows, self.seed, epoch)[place])
        return window(self.shards, self.form, index, epoch)


def window(shards: Shards, form: Form, index: int, epoch: int = 0) -> Window:
    """Window number `index` of a split."""
    start = index * form.stride
    return Window(shards[start : start + form.stride + form.overlap], index, epoch)


@functools.lru_cache(maxsize=2)  # A batch may lie across two epochs.
def permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: the numbers below `size`, int64, by (seed, epoch) alone."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(size)
