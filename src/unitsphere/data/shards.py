"""A split of a prepared folder, memory-mapped: one long stream of tokens."""

from __future__ import annotations

import hashlib
from itertools import accumulate
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import TYPE_CHECKING

from unitsphere.data.manifest import SPLITS, FileEntry, Manifest, Split, read_manifest
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Shards:
    """The token stream of one split: separator, document 1, separator, document 2, ...

    n_tokens: tokens of the stream. n_bytes: UTF-8 bytes of its documents. n_documents.
    pairs: whether documents 2i and 2i + 1 are the source and the target of pair i; target_bytes:
    UTF-8 bytes of the targets.
    document_starts: place of each document's separator, uint64 [n_documents].
    separator, vocab_size, tokenizer_fingerprint: of the tokenizer that made them.
    fingerprint: of the tokens. note: what is unusual about the split, or "".
    """

    def __init__(self, folder: Path, split: Split, manifest: Manifest) -> None:
        self.folder, self.split, self.note = folder, split, manifest.note
        counts = manifest.counts(split)
        self.n_tokens, self.n_bytes = counts.tokens, counts.bytes
        self.n_documents = counts.documents
        self.pairs, self.target_bytes = manifest.pairs, counts.target_bytes
        self.separator = manifest.tokenizer.separator
        self.vocab_size = manifest.tokenizer.vocab_size
        self.tokenizer_fingerprint = manifest.tokenizer.fingerprint
        self._files = manifest.files_of(split)
        for entry in self._files:
            _check_size(folder, entry)
        self._maps = [self._map(e, manifest.dtype) for e in self._files if e.holds == "tokens"]
        self._ends = list(accumulate(len(shard) for shard in self._maps))
        starts = [self._map(e, "uint64") for e in self._files if e.holds == "documents"]
        if sum(map(len, self._maps)) != self.n_tokens or [*map(len, starts)] != [self.n_documents]:
            raise UserError(f"{folder} is damaged: its manifest contradicts itself; prepare again")
        self.document_starts = starts[0]
        hashes = [entry.sha256 for entry in self._files if entry.holds == "tokens"]
        self.fingerprint = hashlib.sha256("".join([manifest.dtype, *hashes]).encode()).hexdigest()

    @classmethod
    def open(cls, folder: str | Path, split: Split = "train") -> Shards:
        """Open the "train" or "val" split of a prepared folder, its files' sizes checked."""
        if split not in SPLITS:
            raise ValueError(f"split is 'train' or 'val', not {split!r}")
        folder = Path(expanduser(folder))
        return cls(folder, split, read_manifest(folder))

    def __len__(self) -> int:
        return self.n_tokens

    def __getitem__(self, window: slice) -> np.ndarray:
        """Tokens [start, stop) as a new array, across shard files."""
        import numpy as np

        start, stop, step = window.indices(self.n_tokens)
        if step != 1:
            raise ValueError("only slices of step 1")
        parts, begin = [], 0
        for shard, end in zip(self._maps, self._ends, strict=True):
            if start < end and stop > begin:
                parts.append(shard[max(start - begin, 0) : stop - begin])
            begin = end
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def describe(self) -> str:
        """The split in a few words."""
        note = f" ({self.note})" if self.note else ""
        many = (
            f"{self.n_documents // 2:,} pairs" if self.pairs else f"{self.n_documents:,} documents"
        )
        return f"{self.n_tokens:,} {self.split} tokens in {many}{note}"

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the shards."""
        return load_tokenizer(self.folder / "tokenizer.json")

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """A `UserError` unless `tokenizer` is the one that made the shards."""
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise UserError(
                f"the shards in {self.folder} were made with another tokenizer: use "
                f"{self.folder / 'tokenizer.json'}, or prepare the source again with yours"
            )

    def verify(self) -> None:
        """Read every file of the split and compare its sha256 with the manifest's."""
        for entry in self._files:
            with (self.folder / entry.name).open("rb") as handle:
                found = hashlib.file_digest(handle, "sha256").hexdigest()
            if found != entry.sha256:
                raise UserError(
                    f"{self.folder / entry.name} was changed since it was prepared (its sha256 "
                    "differs from the manifest's): delete the folder and prepare again"
                )

    def _map(self, entry: FileEntry, dtype: str) -> np.ndarray:
        import numpy as np

        kind = np.dtype(dtype).newbyteorder("<")
        if entry.bytes == 0:
            return np.empty(0, kind)
        if entry.bytes % kind.itemsize:
            raise UserError(f"{self.folder / entry.name} is damaged: it is no whole number of ids")
        return np.memmap(self.folder / entry.name, kind, "r")


def _check_size(folder: Path, entry: FileEntry) -> None:
    path = folder / entry.name
    if not path.is_file():
        raise UserError(f"{path} is missing: delete the folder and prepare again")
    size = path.stat().st_size
    if size != entry.bytes:
        what = "truncated" if size < entry.bytes else "too long"
        raise UserError(
            f"{path} is {what} ({size} bytes, the manifest says {entry.bytes}): "
            "delete the folder and prepare again"
        )
