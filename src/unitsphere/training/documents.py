"""The documents that a run is scored on, as tokens: of any text, or of its validation split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unitsphere.data.prepare import scored_split
from unitsphere.data.sources import read_documents, source_files
from unitsphere.data.stretches import DocumentTokens, ShardTokens, TextTokens
from unitsphere.errors import UserError
from unitsphere.training.load import LoadedRun


@contextmanager
def open_documents(
    run: LoadedRun, data: str | None, field: str
) -> Iterator[Callable[[], DocumentTokens]]:
    """A source of documents that can be asked for again and again; data None: validation.

    Raises UserError for an empty text, and for a split that another tokenizer made.
    """
    shards = scored_split(data, run.config.data)
    if shards is not None:
        shards.check_tokenizer(run.tokenizer)
        yield lambda: ShardTokens(shards)
        return
    assert data is not None  # that means a split
    with source_files(data) as files:
        if not any(path.stat().st_size for path in files):
            raise UserError(f"{data} is empty: there is no text to evaluate")
        yield lambda: TextTokens(read_documents(files, field), run.tokenizer)
