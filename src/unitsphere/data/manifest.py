"""The manifest of a folder of token shards: what is in it, checked before anything is used.

A folder holds, in addition to manifest.json:

- {split}-00000.bin, ...: the split's token ids, raw little-endian `dtype`; the shards of a split
  laid end to end are its token stream: separator, document 1, separator, document 2, ...
- {split}-documents.bin: raw little-endian uint64, the place of each document's separator in it;
- tokenizer.json: the tokenizer.

Where the manifest says `pairs`, documents 2i and 2i + 1 are the source and the target of pair i.

The manifest names each file with its size and sha256. It is written last.
"""

import dataclasses
import json
from dataclasses import dataclass
from os.path import expanduser, isfile  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import Literal

from unitsphere.config import from_dict, read_json, to_dict
from unitsphere.errors import UserError

NAME = "manifest.json"
VERSION = 1
Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")


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
    """`tokenizer.text_lost` of the source; None in older manifests"""
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
