"""The data that rates and other keys are tuned on.

The validation documents that a study reports take no part in its tuning: a share of the training
documents is held out in their place. The tokens are those of the training split, so tokenizer and
vocabulary are the same as in the final runs.
"""

import dataclasses
import hashlib
import itertools
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path

import numpy as np

from unitsphere.data.job import share_of
from unitsphere.data.manifest import (
    NAME,
    Counts,
    FileEntry,
    Manifest,
    is_prepared,
    manifest_text,
    read_manifest,
)
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.writer import SplitWriter, publish, workspace, write_file
from unitsphere.errors import UserError
from unitsphere.training.config import RunConfig

PIECE = 1 << 20
"""Tokens that are copied at a time."""


def tuning_data(config: RunConfig, fraction: float) -> Path:
    """A prepared folder, in data.cache, of the run's training split without its validation split.

    `fraction` of the documents (of pairs, with seq2seq) is its validation split, chosen by a hash
    of their index; of a single document it is the end. Raises UserError for unusable data.
    """
    source = Shards.open(prepared(config.data, pairs=config.objective == "seq2seq"), "train")
    if source.pairs and source.n_documents < 4:
        raise UserError(f"{config.data.source} has too few pairs to tune on a share of them")
    wanted = hashlib.sha256(f"tuning {source.fingerprint} {fraction!r}".encode()).hexdigest()
    out = Path(expanduser(config.data.cache)) / f"tuning-{wanted[:16]}"
    if not is_prepared(out):
        with workspace(out) as partial:
            write_splits(source, fraction, wanted, partial)
            publish(partial, out)
    return out


def write_splits(source: Shards, fraction: float, fingerprint: str, folder: Path) -> None:
    """Fill an empty folder with the documents of `source` in two splits, its manifest last."""
    made_from = read_manifest(source.folder)
    tokenizer = source.tokenizer()
    train = SplitWriter(folder, "train", made_from.dtype, source.separator)
    val = SplitWriter(folder, "val", made_from.dtype, source.separator)
    size = target_size = 0
    for number, (start, stop) in enumerate(documents(source, fraction)):
        if holds_out(number, source.pairs, fraction):
            copy(source, start, stop, val)
            text = len(tokenizer.decode(source[start:stop].tolist()).encode())
            size += text
            target_size += text if source.pairs and number % 2 else 0
        else:
            copy(source, start, stop, train)
    saved = write_file(folder / "tokenizer.json", tokenizer.json.encode())
    train_counts, train_files = closed(
        train, source.n_bytes - size, source.target_bytes - target_size
    )
    val_counts, val_files = closed(val, size, target_size)
    manifest = Manifest(
        source=f"the training split of {made_from.source}",
        note="the training split, split again to tune on",
        input=fingerprint,
        dtype=made_from.dtype,
        tokenizer=made_from.tokenizer,
        train=train_counts,
        val=val_counts,
        pairs=source.pairs,
        text_lost=made_from.text_lost,
        files=(saved.entry("tokenizer", "all"), *train_files, *val_files),
    )
    write_file(folder / NAME, manifest_text(manifest).encode())


def documents(source: Shards, fraction: float) -> list[tuple[int, int]]:
    """First token and end of each document, separators left out; a single one is cut in two."""
    starts = [int(start) for start in source.document_starts]
    found = [(a + 1, b) for a, b in itertools.pairwise([*starts, source.n_tokens])]
    if len(found) == 1:
        start, stop = found[0]
        cut = stop - max(1, round(fraction * (stop - start)))
        return [(start, cut), (cut, stop)]
    return found


def holds_out(document: int, pairs: bool, fraction: float) -> bool:
    """Whether a document is to tune on; of the first two the second always is."""
    index = document // 2 if pairs else document
    return index == 1 if index < 2 else share_of("tuning", index) < fraction


def copy(source: Shards, start: int, stop: int, split: SplitWriter) -> None:
    """Write a document of `source`; its bytes of text are counted by the caller."""
    split.begin_document()
    for first in range(start, stop, PIECE):
        split.write(source[first : min(first + PIECE, stop)].astype(np.uint32), 0)


def closed(split: SplitWriter, size: int, target_size: int) -> tuple[Counts, list[FileEntry]]:
    """A split's counts, with its bytes of text and of targets, and its files."""
    counts, files = split.close()
    return dataclasses.replace(counts, bytes=size, target_bytes=target_size), files
