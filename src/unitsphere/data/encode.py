"""One source into one folder of shards: read, tokenize on all cores, write; progress on stderr.

One thread reads and writes while the tokenizer works on a few batches in its own threads, so at
most those batches are in memory.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.data.documents import Piece
from unitsphere.data.job import ShardsJob, place_to_cut, share_of
from unitsphere.data.shards import (
    NAME,
    Counts,
    FileEntry,
    Manifest,
    TokenizerEntry,
    manifest_text,
)
from unitsphere.data.tokenizer import (
    Sample,
    Tokenizer,
    bpe_size,
    load_tokenizer,
    text_lost,
    train_bpe,
)
from unitsphere.data.writer import SplitWriter, write_file
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SAMPLE_BYTES = 32 << 20
"""About the bytes of text on which a BPE is trained: an even sample of a larger source's pieces."""
SAMPLE_WORDS = 4_000_000
"""Most characters of the sample's distinct words together, which are held in memory."""
LONGEST_WORD = 256
"""Longer words are cut for the training, which takes very long over them."""
IN_FLIGHT = 3
"""Batches at the tokenizer at a time, so that it never waits for reading and writing."""
LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

BATCH_CHARACTERS, BATCH_PIECES = 1 << 20, 1 << 12
"""A batch for the tokenizer is full with either: a few long pieces, or very many short ones."""


def write_shards(job: ShardsJob, fingerprint: str, folder: Path, progress: bool) -> None:
    """Fill an empty folder with all that a prepared folder holds, the manifest last."""
    size, cut = job.whole_size(), place_to_cut(job)
    tokenizer = _tokenizer(job, cut, progress)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    train = _Split(job, SplitWriter(folder, "train", dtype, tokenizer.separator))
    val = _Split(job, SplitWriter(folder, "val", dtype, tokenizer.separator))
    with progress_of("tokenizing", size, progress) as advance:
        for piece, tokens in _encoded(job.pieces(cut, advance), tokenizer):
            split = val if job.holds_out(piece.document) else train
            split.write(piece, tokens)
        for piece, tokens in _encoded(job.validation_pieces(advance), tokenizer):
            val.write(piece, tokens)
    job.check_unchanged()
    train_counts, train_files = train.close()
    val_counts, val_files = val.close()
    saved = write_file(folder / "tokenizer.json", tokenizer.json.encode())
    manifest = Manifest(
        source=job.source,
        note="" if cut is None else "one document, whose end is the validation split",
        input=fingerprint,
        dtype=dtype,
        tokenizer=TokenizerEntry(
            job.tokenizer, tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.separator
        ),
        train=train_counts,
        val=val_counts,
        pairs=job.pairs,
        text_lost=max(text_lost(tokenizer, split.sample.texts) for split in (train, val)),
        files=(saved.entry("tokenizer", "all"), *train_files, *val_files),
    )
    write_file(folder / NAME, manifest_text(manifest).encode())


class _Split:
    """Hands a split's pieces to its writer, and counts what the writer does not know of."""

    def __init__(self, job: ShardsJob, writer: SplitWriter) -> None:
        self._job, self._writer = job, writer
        self._last = -1
        self._target_bytes = 0
        self.sample = Sample()

    def write(self, piece: Piece, tokens: np.ndarray) -> None:
        if piece.document != self._last:
            self._writer.begin_document()
            self._last = piece.document
        self.sample.add(piece.text)
        size = len(piece.text.encode())
        self._writer.write(tokens, size)
        if self._job.pairs and piece.document % 2:
            self._target_bytes += size

    def close(self) -> tuple[Counts, list[FileEntry]]:
        counts, files = self._writer.close()
        return dataclasses.replace(counts, target_bytes=self._target_bytes), files


def _encoded(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Piece, np.ndarray]]:
    """Each piece with its tokens, in order."""
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        waiting: deque[tuple[list[Piece], Future[list[np.ndarray]]]] = deque()
        try:
            for batch in _batches(pieces):
                texts = [piece.text for piece in batch]
                waiting.append((batch, pool.submit(tokenizer.encode_batch, texts)))
                if len(waiting) == IN_FLIGHT:
                    batch, tokens = waiting.popleft()
                    yield from zip(batch, tokens.result(), strict=True)
            for batch, tokens in waiting:
                yield from zip(batch, tokens.result(), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokenizer(job: ShardsJob, cut: int | None, progress: bool) -> Tokenizer:
    size = bpe_size(job.tokenizer)
    if size is None:
        return load_tokenizer(job.tokenizer)
    if job.val_fraction == 1 and not job.validation:
        raise UserError(f"{job.tokenizer} needs text to train on: with val_fraction 1 none is left")
    share = SAMPLE_BYTES / job.size()
    with progress_of(f"training {job.tokenizer}", job.size(), progress) as advance:
        texts = (
            text
            for index, (document, text) in enumerate(job.pieces(cut, advance))
            if share_of("piece", index) < share and not job.holds_out(document)
        )
        return train_bpe(_few_words(texts), size)


def _few_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts until their distinct words amount to SAMPLE_WORDS characters."""
    long_word = re.compile(rf"\S{{{LONGEST_WORD}}}")
    words: set[str] = set()
    size = 0
    for text in texts:
        text = long_word.sub(r"\g<0> ", text)
        new = set(text.split()) - words
        words |= new
        size += sum(map(len, new))
        if size > SAMPLE_WORDS:
            return
        yield text


@contextmanager
def progress_of(what: str, total: int, shown: bool = True) -> Iterator[Callable[[int], object]]:
    """Yields `advance(n)`, to be called for every n bytes of `total` that are done."""
    if not shown:
        yield lambda n: None
    elif sys.stderr.isatty():
        with _bar(what, total) as advance:
            yield advance
    else:
        yield _Lines(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._begun = self._last = time.monotonic()

    def __call__(self, n: int) -> None:
        self._done += n
        now = time.monotonic()
        if now - self._last >= LINE_EVERY:
            self._last = now
            done, rate = self._done / 1e6, self._done / 1e6 / (now - self._begun)
            line = f"{self._what}: {done:.0f} of {self._total / 1e6:.0f} MB, {rate:.1f} MB/s"
            print(line, file=sys.stderr, flush=True)
