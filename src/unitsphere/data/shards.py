"""A prepared folder: its manifest, and each split as one long stream of tokens in shard files.

A folder holds, in addition to manifest.json:

- {split}-00000.bin, ...: the split's token ids, raw little-endian `dtype`; the shards of a split
  laid end to end are its token stream: separator, document 1, separator, document 2, ...
- {split}-documents.bin: raw little-endian uint64, the place of each document's separator in it;
- tokenizer.json: the tokenizer.

Where the manifest says `pairs`, documents 2i and 2i + 1 are the source and the target of pair i.

The manifest names each file with its size and sha256. It is written last, and checked before
anything is used. A file is checked when it is opened, and again whenever it is read. It is opened
for each read, because a corpus may have more shards than a process may hold open. It is not
memory-mapped: if a mapped file is cut short, the process dies without an error message.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import accumulate
from os.path import expanduser, isfile  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unitsphere.config import from_dict, read_json, to_dict
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.files import check_within, open_given

if TYPE_CHECKING:
    import numpy as np

NAME = "manifest.json"
VERSION = 1
Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
END = 1 << 16
"""Bytes at either end of a file that are compared when it is opened."""
Identity = tuple[int, int, int, int]
"""Device, number, size and time of the last change: if it differs, the content may too."""


@dataclass(frozen=True)
class FileEntry:
    """One file: what it holds, of which split ("all": of both), its size and its hash.

    ends: sha256 of its first and last 64 KiB, which is compared whenever it is opened; "" in older
    manifests.
    """

    name: str
    holds: Literal["tokens", "documents", "tokenizer"]
    split: Literal["train", "val", "all"]
    bytes: int
    sha256: str
    ends: str = ""


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer as it was asked for, and as it is."""

    spec: str
    fingerprint: str
    vocab_size: int
    separator: int


@dataclass(frozen=True)
class Counts:
    """Tokens (separators included), UTF-8 bytes of text, and documents of a split.

    target_bytes: those of the bytes that are the targets of pairs.
    """

    tokens: int
    bytes: int
    documents: int
    target_bytes: int = 0


@dataclass(frozen=True)
class Manifest:
    """All that manifest.json says. `input` fingerprints everything the shards were made from."""

    source: str
    note: str
    input: str
    dtype: Literal["uint16", "uint32"]
    tokenizer: TokenizerEntry
    train: Counts
    val: Counts
    pairs: bool = False
    text_lost: float | None = None
    """`tokenizer.text_lost` of the split that loses more; None in older manifests"""
    files: tuple[FileEntry, ...] = ()

    def counts(self, split: Split) -> Counts:
        """What a split amounts to."""
        return self.train if split == "train" else self.val

    def files_of(self, split: Split) -> list[FileEntry]:
        """The files that a split needs."""
        return [entry for entry in self.files if entry.split in (split, "all")]


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder was made by `prepare`: it has a manifest."""
    # Unlike Path's, it is False for a name that cannot be.
    return isfile(Path(expanduser(folder)) / NAME)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; a `UserError` if it has none or it cannot be trusted."""
    path = folder / NAME
    if not path.is_file():
        raise UserError(f"{folder} holds no prepared data: make it with 'unitsphere prepare'")
    data = read_json(path)
    version = data.pop("version", None) if isinstance(data, dict) else None
    if version != VERSION:
        raise UserError(
            f"{path} has format version {version!r}, this unitsphere reads {VERSION}: prepare again"
        )
    entries = data.pop("files", None)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} is damaged: it lists no files")
    files = tuple(from_dict(FileEntry, entry, f"{path}: files.") for entry in entries)
    for entry in files:
        if Path(entry.name).name != entry.name or entry.name in ("", ".."):
            raise UserError(f"{path} names a file outside its folder: {entry.name!r}")
    return dataclasses.replace(from_dict(Manifest, data, f"{path}: "), files=files)


def manifest_text(manifest: Manifest) -> str:
    """The manifest as the text of manifest.json; `read_manifest` reads it back."""
    return json.dumps({"version": VERSION, **to_dict(manifest)}, indent=2) + "\n"


class Shards:
    """The token stream of one split: separator, document 1, separator, document 2, ...

    n_tokens: tokens of the stream. n_bytes: UTF-8 bytes of its documents. n_documents.
    pairs: whether documents 2i and 2i + 1 are the source and the target of pair i; target_bytes:
    UTF-8 bytes of the targets.
    separator, vocab_size, tokenizer_fingerprint: of the tokenizer that made them.
    fingerprint: of the tokens. input: of what they were made from.
    """

    def __init__(self, folder: Path, split: Split, manifest: Manifest) -> None:
        self.folder, self.split = folder, split
        counts = manifest.counts(split)
        self.n_tokens, self.n_bytes = counts.tokens, counts.bytes
        self.n_documents = counts.documents
        self.input = manifest.input
        self.pairs, self.target_bytes = manifest.pairs, counts.target_bytes
        self.text_lost = manifest.text_lost or 0.0
        self.separator = manifest.tokenizer.separator
        self.vocab_size = manifest.tokenizer.vocab_size
        self.tokenizer_fingerprint = manifest.tokenizer.fingerprint
        kinds = {"tokens": manifest.dtype, "documents": "uint64", "tokenizer": "uint8"}
        self._files = [ShardFile(folder, e, kinds[e.holds]) for e in manifest.files_of(split)]
        self._shards = [file for file in self._files if file.entry.holds == "tokens"]
        # Where each shard begins in the stream, and where the last one ends.
        self._bounds = [*accumulate(map(len, self._shards), initial=0)]
        starts = [file for file in self._files if file.entry.holds == "documents"]
        if self._bounds[-1] != self.n_tokens or [*map(len, starts)] != [self.n_documents]:
            raise UserError(f"{folder} is damaged: its manifest contradicts itself; prepare again")
        self._starts = starts[0]
        hashes = [shard.entry.sha256 for shard in self._shards]
        self.fingerprint = hashlib.sha256("".join([manifest.dtype, *hashes]).encode()).hexdigest()

    @classmethod
    def open(cls, folder: str | Path, split: Split = "train") -> Shards:
        """Open the "train" or "val" split of a prepared folder, its files checked except for their
        middles (`verify`).
        """
        if split not in SPLITS:
            raise ValueError(f"split is 'train' or 'val', not {split!r}")
        folder = Path(expanduser(folder))
        return cls(folder, split, read_manifest(folder))

    def __len__(self) -> int:
        return self.n_tokens

    def __getitem__(self, window: slice) -> np.ndarray:
        """Tokens [start, stop) as a new array, across shard files.

        Raises a `UserError` if one was changed since the split was opened.
        """
        import numpy as np

        start, stop, step = window.indices(self.n_tokens)
        if step != 1:
            raise ValueError("only slices of step 1")
        stop = max(start, stop)
        first = bisect_right(self._bounds, start, lo=1) - 1  # the first that ends after `start`
        beyond = bisect_left(self._bounds, stop, hi=len(self._shards))
        parts = []
        for number in range(first, beyond):
            begin, end = self._bounds[number : number + 2]
            parts.append(self._shards[number].read(max(start - begin, 0), min(stop, end) - begin))
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Place of each document's separator, uint64 [n_documents]."""
        return self._starts.read(0, self.n_documents)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the shards."""
        return load_tokenizer(self.folder / "tokenizer.json", self.folder)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """A `UserError` unless `tokenizer` is the one that made the shards."""
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise UserError(
                f"the shards in {self.folder} were made with another tokenizer: use "
                f"{self.folder / 'tokenizer.json'}, or prepare the source again with yours"
            )

    def verify(self) -> None:
        """Read every file of the split and compare its sha256 with the manifest's."""
        for file in self._files:
            file.verify()


class ShardFile:
    """Numbers of `dtype`, little-endian; `len` is how many.

    Raises a `UserError` if the file is missing, or its size or its ends are not the manifest's.
    """

    def __init__(self, folder: Path, entry: FileEntry, dtype: str) -> None:
        import numpy as np

        self.path, self.entry = folder / entry.name, entry
        self.kind = np.dtype(dtype).newbyteorder("<")
        check_within(self.path, folder)
        with _open(self.path) as file:
            self.identity = _identity(file)
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                what = "truncated" if size < entry.bytes else "too long"
                raise UserError(
                    f"{self.path} is {what} ({size} bytes, the manifest says {entry.bytes}): "
                    "delete the folder and prepare again"
                )
            if entry.ends and ends_of(file) != entry.ends:
                raise _changed(self.path, "its first or last bytes differ")
        if entry.bytes % self.kind.itemsize:
            raise UserError(f"{self.path} is damaged: it is not a whole number of ids")

    def __len__(self) -> int:
        return self.entry.bytes // self.kind.itemsize

    def read(self, start: int, stop: int) -> np.ndarray:
        """Numbers [start, stop), which must be there."""
        import numpy as np

        width = self.kind.itemsize
        with _open(self.path) as file:
            if _identity(file) != self.identity:
                raise UserError(
                    f"{self.path} was changed while it was in use: restore it, and the same "
                    "command resumes"
                )
            data = read_at(file, (stop - start) * width, start * width)
        if len(data) != (stop - start) * width:
            raise UserError(f"{self.path} was cut short while it was in use: restore it")
        return np.frombuffer(data, self.kind)

    def verify(self) -> None:
        """Read the whole file and compare its sha256 with the manifest's."""
        with _open(self.path) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.entry.sha256:
                raise _changed(self.path, "its sha256 differs")


def ends_of(file: FileIO) -> str:
    """sha256 of a file's first END bytes and its last."""
    size = os.fstat(file.fileno()).st_size
    last = max(size - END, 0)
    return hashlib.sha256(read_at(file, END, 0) + read_at(file, END, last)).hexdigest()


def read_at(file: FileIO, count: int, start: int) -> bytes:
    """The `count` bytes from `start` on, or all up to the file's end if there are fewer."""
    parts: list[bytes] = []
    while count > 0:  # Linux reads at most 2 GiB at once
        part = os.pread(file.fileno(), count, start)
        if not part:
            break
        parts.append(part)
        count, start = count - len(part), start + len(part)
    return b"".join(parts)


def _identity(file: FileIO) -> Identity:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: Path) -> FileIO:
    if not path.exists():
        raise UserError(f"{path} is missing: delete the folder and prepare again")
    return open_given(path)


def _changed(path: Path, how: str) -> UserError:
    return UserError(
        f"{path} was changed since it was prepared ({how} from the manifest's): delete the folder "
        "and prepare again"
    )
