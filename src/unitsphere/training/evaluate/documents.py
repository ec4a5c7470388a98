"""What a run is scored or probed on, as tokens: any text, or its validation split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from unitsphere.data.batch import Batch, count_windows
from unitsphere.data.batches import DocumentTokens, ShardTokens, TextTokens, window
from unitsphere.data.documents import PairFields, read_documents, read_text_pairs
from unitsphere.data.pairs import Pairs
from unitsphere.data.prepare import scored_split
from unitsphere.data.sources import source_files
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.training.config import RunConfig
from unitsphere.training.evaluate.pairs import cut_batch, text_pairs
from unitsphere.training.evaluate.text import scoring_form, spread, stream_windows
from unitsphere.training.load import LoadedRun

Row = TypeVar("Row")


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


def given_rows(config: RunConfig, tokenizer: Tokenizer, data: str, count: int) -> Batch:
    """Up to `count` rows of `data` as a run is validated: the first of a text, spread over a split.

    Nothing is written. Raises UserError if there is none.
    """
    if config.objective == "seq2seq":
        return given_pairs(config, tokenizer, data, count)
    form = scoring_form(config, tokenizer, config.data.context)
    shards = scored_split(data, config.data)
    if shards is not None:
        shards.check_tokenizer(tokenizer)
        places = spread(count_windows(shards.n_tokens, form), count)
        return form.batch([window(shards, form, place) for place in places])
    with source_files(data) as files:
        documents = read_documents(files, config.data.field)
        return form.batch(first_of(stream_windows(documents, tokenizer, form), count, data))


def given_pairs(config: RunConfig, tokenizer: Tokenizer, data: str, count: int) -> Batch:
    """`given_rows` of an encoder–decoder."""
    shards = scored_split(data, config.data, pairs=True)
    if shards is not None:
        shards.check_tokenizer(tokenizer)
        split = Pairs(shards)
        chosen = [split[place] for place in spread(len(split), count)]
    else:
        fields = PairFields(config.data.source_field, config.data.target_field)
        with source_files(data) as files:
            found = text_pairs(read_text_pairs(files, fields), tokenizer)
            chosen = first_of(found, count, data)
    return cut_batch(chosen, tokenizer.separator, config.data.context)


def first_of(rows: Iterator[Row], count: int, data: str) -> list[Row]:
    """Up to `count` of the rows of `data`; a `UserError` if there are none."""
    found = list(islice(rows, count))
    if not found:
        raise UserError(f"{data} is empty: there is nothing to look at")
    return found
