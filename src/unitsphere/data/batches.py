"""A token stream as batches: for training in a random order, for measuring as long stretches.

`Batches` is a pure function of (seed, step). The stream is covered by the windows of a `Form`. An
epoch is a permutation of the windows that depends only on (seed, epoch); the epochs, laid end to
end, are cut into batches of `rows` windows. So a row's content does not depend on who asks for it,
and any number of processes may share a batch. `Prefetch` reads them ahead in a thread.

`stretches` are for measuring at several context lengths on the same tokens: each context divides
the stretch. No stretch spans two documents, and what is left of a document after its last
stretch is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from unitsphere.data.batch import Batch, Form, Window, count_windows
from unitsphere.data.documents import Piece
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import Sample, Tokenizer, text_lost
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np

READ = 1 << 16
"""Tokens of shards that are read at a time."""


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


@lru_cache(maxsize=2)  # A batch may span two epochs.
def permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: the numbers below `size`, int64; depends only on (seed, epoch)."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(size)


class ByStep(Protocol):
    """Batches as a pure function of the step."""

    def batch(self, step: int) -> Batch: ...

    def rows(self, step: int, first: int, count: int) -> Batch: ...


class Prefetch:
    """The same batches; asking for one starts reading those of the next `ahead` steps.

    Because batches depend only on the step, there is no state to keep, and steps may come in any
    order. An error in the thread is raised when that step's batch is asked for. Use it as a context
    manager.
    """

    def __init__(self, batches: ByStep, ahead: int) -> None:
        self.batches, self.ahead = batches, ahead
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.started: dict[tuple[int, ...], Future[Batch]] = {}

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        return self._take(step)

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of a step's batch from row `first` on."""
        return self._take(step, first, count)

    def _take(self, step: int, *part: int) -> Batch:
        read = self.batches.rows if part else self.batches.batch
        wanted = [(s, *part) for s in range(step, step + self.ahead + 1)]
        self.started = {
            key: self.started.get(key) or self.pool.submit(partial(read, *key)) for key in wanted
        }
        return self.started.pop(wanted[0]).result()


class TextTokens:
    """The tokens of documents that come as text, without separators.

    `text_lost` (`tokenizer.text_lost` of the text) is known when all was read.
    """

    def __init__(self, pieces: Iterable[Piece], tokenizer: Tokenizer) -> None:
        self.pieces, self.tokenizer = pieces, tokenizer
        self.sample = Sample()

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        import numpy as np

        for piece in self.pieces:
            tokens = np.asarray(self.tokenizer.encode(piece.text), np.int64)
            self.sample.add(piece.text)
            yield piece.document, tokens

    @property
    def text_lost(self) -> float:
        return text_lost(self.tokenizer, self.sample.texts)


class ShardTokens:
    """The tokens of a prepared split's documents."""

    def __init__(self, shards: Shards) -> None:
        self.shards, self.text_lost, self.tokenizer = shards, shards.text_lost, shards.tokenizer()

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        import numpy as np

        begins = [int(start) for start in self.shards.document_starts]
        ends = [*begins[1:], self.shards.n_tokens]
        for document, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            for start in range(begin + 1, end, READ):
                part = self.shards[start : min(start + READ, end)]
                yield document, part.astype(np.int64)


DocumentTokens = TextTokens | ShardTokens
"""Documents' tokens without separators, in parts: (number of the document, tokens)."""


def stretches(
    documents: Iterable[tuple[int, np.ndarray]],
    separator: int,
    length: int,
    per_document: int | None = None,
) -> Iterator[np.ndarray]:
    """int64 [length + 1] each: a token of context, then `length` tokens to predict.

    The first of a document starts with the separator, every other with the last token of the one
    before. With `per_document` only those within that many tokens from the start of a document.
    """
    import numpy as np

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
