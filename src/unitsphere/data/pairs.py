"""Pairs of texts: what an encoder–decoder is given, and what it has to write.

A source is its tokens and the separator. The decoder is given the separator and the target's
tokens, and must predict the target's tokens and the separator. So the separator is start, end and
padding: of the source where `source_mask` is false, of the target where the target is IGNORED.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.batches import permutation
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

WIDTH = 8
"""Batches of a run are as wide as a multiple of this, so that few widths occur."""


class Pair(NamedTuple):
    """The tokens of both sides, without separators, and the UTF-8 bytes of the target.

    The bytes may be a fraction: a part of a target has its tokens' share.
    """

    source: np.ndarray
    target: np.ndarray
    target_bytes: float


class Pairs:
    """The pairs of a prepared split, in the order of their file.

    n_target_tokens counts the targets' tokens, separators left out. A single pair's target_bytes
    are its tokens' share of those of the split. Raises a `UserError` if the split holds documents.
    """

    def __init__(self, shards: Shards) -> None:
        if not shards.pairs:
            raise UserError(f"{shards.folder} holds documents, not pairs: prepare it as pairs")
        self.shards = shards
        self.n_target_tokens = int(self.lengths()[1].sum()) - len(self)

    def __len__(self) -> int:
        return self.shards.n_documents // 2

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        starts, end = self.shards.document_starts, self.shards.n_tokens
        first, second = int(starts[2 * index]), int(starts[2 * index + 1])
        if index + 1 < len(self):
            end = int(starts[2 * index + 2])
        target = self.shards[second + 1 : end]
        share = self.shards.target_bytes * len(target) / max(self.n_target_tokens, 1)
        return Pair(self.shards[first + 1 : second], target, share)

    def __iter__(self) -> Iterator[Pair]:
        return (self[index] for index in range(len(self)))

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of every source and of every target, each with one separator, int64 [pairs]."""
        import numpy as np

        ends = np.append(self.shards.document_starts, self.shards.n_tokens).astype(np.int64)
        lengths = np.diff(ends)
        return lengths[0::2], lengths[1::2]

    def longer_than(self, context: int) -> int:
        """How many pairs have a side of more than `context` tokens, the separator counted."""
        source, target = self.lengths()
        return int(((source > context) | (target > context)).sum())


class PairBatches:
    """Batches of `rows` pairs in an order given by `seed`: a pure function of (seed, step).

    An epoch is a permutation of the pairs that depends only on (seed, epoch); the epochs, laid end
    to end, are cut into batches. Each side of a batch is as wide as the longest of its `rows`
    pairs, rounded up to a multiple of 8, at most `context`. Pairs with a side longer than `context`
    (with its separator) are left out: `left_out` is how many. Raises a `UserError` if no pair is
    left.
    """

    def __init__(self, pairs: Pairs, rows: int, context: int, seed: int) -> None:
        import numpy as np

        if context < 1 or rows < 1 or seed < 0:
            raise UserError(
                "context and rows are at least 1 and the seed at least 0, "
                f"not {context}, {rows} and {seed}"
            )
        source, target = pairs.lengths()
        self._kept = np.flatnonzero((source <= context) & (target <= context))
        self._lengths = source[self._kept], target[self._kept]
        self.left_out = len(pairs) - len(self._kept)
        if not len(self):
            raise UserError(
                f"none of the {len(pairs)} pairs for training fits data.context {context}: "
                "use more pairs or a longer data.context"
            )
        self.pairs, self.context, self._rows, self.seed = pairs, context, rows, seed

    def __len__(self) -> int:
        return len(self._kept)

    def batch(self, step: int) -> Batch:
        """The batch of a step, [rows, …]."""
        return self.rows(step, 0, self._rows)

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of a step's batch from row `first` on, as wide as the whole batch."""
        places = [self._place(step * self._rows + row) for row in range(self._rows)]
        widths = [self._width(lengths[places]) for lengths in self._lengths]
        chosen = [self.pairs[int(self._kept[place])] for place in places[first : first + count]]
        return pair_batch(chosen, self.pairs.shards.separator, *widths)

    def _place(self, row: int) -> int:
        epoch, place = divmod(row, len(self))
        return int(permutation(len(self), self.seed, epoch)[place])

    def _width(self, lengths: np.ndarray) -> int:
        return min(-(-int(lengths.max()) // WIDTH) * WIDTH, self.context)


def pair_batch(
    pairs: Sequence[Pair],
    separator: int,
    source_width: int | None = None,
    target_width: int | None = None,
) -> Batch:
    """Pairs as rows, [pairs, width] each side; no width: the longest's, with its separator.

    A side that is longer than its width is cut there: a source still ends with the separator, a
    target does not, because its end is missing.
    """
    import torch

    source, source_mask = source_batch([pair.source for pair in pairs], separator, source_width)
    width = target_width or 1 + max(len(pair.target) for pair in pairs)
    inputs = torch.full((len(pairs), width), separator)
    targets = torch.full((len(pairs), width), IGNORED)
    for row, pair in enumerate(pairs):
        tokens = torch.from_numpy(pair.target.astype("int64"))
        inputs[row, 1 : len(tokens) + 1] = tokens[: width - 1]
        targets[row, : len(tokens)] = tokens[:width]
        targets[row, len(tokens) : len(tokens) + 1] = separator
    return Batch(inputs, targets, source, source_mask)


def source_batch(
    sources: Sequence[np.ndarray], separator: int, width: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources as rows, int64 [sources, width], and where they are real, bool.

    Each ends with the separator, before which a source that is too long is cut. No width: that of
    the longest with its separator.
    """
    import torch

    width = width or 1 + max(len(tokens) for tokens in sources)
    lengths = torch.tensor([min(1 + len(tokens), width) for tokens in sources])
    rows = torch.full((len(sources), width), separator)
    for row, tokens in enumerate(sources):
        rows[row, : lengths[row] - 1] = torch.from_numpy(tokens[: width - 1].astype("int64"))
    return rows, torch.arange(width) < lengths[:, None]
