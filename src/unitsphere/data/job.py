"""What is to be prepared: a source, what of it is text, and which part is held out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import NamedTuple

from unitsphere.data.documents import PairFields, Piece, read_documents, read_pairs
from unitsphere.data.shards import VERSION
from unitsphere.data.sources import content_fingerprint
from unitsphere.data.tokenizer import Tokenizer, is_name, load_tokenizer, text_lost
from unitsphere.errors import UserError
from unitsphere.files import open_given


class Seen(NamedTuple):
    """What changes when a file is written to, even if its size stays the same.

    written, changed: times in ns; the first can be set back by whoever writes, the second cannot.
    """

    device: int
    inode: int
    size: int
    written: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Seen:
        """A file as it is now; a `UserError` if it cannot be read."""
        with open_given(path) as file:
            s = os.fstat(file.fileno())
        return cls(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)


@dataclass(frozen=True)
class ShardsJob:
    """Everything that shapes the shards."""

    source: str
    files: Sequence[Path]
    field: str | PairFields
    """what holds the text of a JSONL line; or the two sides of a pair, in parallel JSONL"""
    tokenizer: str
    val_fraction: float
    validation: Sequence[Path] = ()
    """files that are the validation split; without any it is val_fraction of the source"""
    _seen: list[Seen] = dataclass_field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.val_fraction <= 1:
            raise UserError(f"val_fraction is a share from 0 to 1, not {self.val_fraction}")
        object.__setattr__(self, "_seen", self._look())
        self._check_apart()

    def fingerprint(self) -> str:
        """Equal for equal contents and settings, wherever the files are."""
        named = is_name(self.tokenizer)
        tokenizer = self.tokenizer if named else load_tokenizer(self.tokenizer).fingerprint
        content = content_fingerprint(self.files)
        held_out = self.val_fraction
        if self.validation:
            held_out = content_fingerprint(self.validation)
        parts = [VERSION, content, self.field, tokenizer, held_out]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def pieces(
        self, cut: int | None = None, on_bytes: Callable[[int], object] = lambda n: None
    ) -> Iterator[Piece]:
        """The source's text; `cut` is where its one document becomes two, in characters."""
        pieces = self._read(self.files, on_bytes)
        return pieces if cut is None else _cut_in_two(pieces, cut, self._slack(cut))

    def validation_pieces(
        self, on_bytes: Callable[[int], object] = lambda n: None
    ) -> Iterator[Piece]:
        """The text of the files that are the validation split."""
        return self._read(self.validation, on_bytes)

    def text_lost(self, tokenizer: Tokenizer) -> float:
        """The larger `tokenizer.text_lost` of the first texts of the source and the validation."""
        both = self.pieces(), self.validation_pieces()
        return max(text_lost(tokenizer, (piece.text for piece in pieces)) for pieces in both)

    @property
    def pairs(self) -> bool:
        """Whether the source holds pairs rather than documents."""
        return isinstance(self.field, PairFields)

    def holds_out(self, document: int) -> bool:
        """Whether a document of the source is for validation; both sides of a pair are, or neither.

        The second always is and the first never, so that both splits have one.
        """
        if self.validation:
            return False
        index = document // 2 if self.pairs else document
        if index < 2 and 0 < self.val_fraction < 1:
            return index == 1
        return share_of("document", index) < self.val_fraction

    def size(self) -> int:
        """Bytes of the source's files."""
        return sum(seen.size for seen in self._seen[: len(self.files)])

    def whole_size(self) -> int:
        """Bytes of all that is read: the source's files and those of the validation."""
        return sum(seen.size for seen in self._seen)

    def check_unchanged(self) -> None:
        """Raise UserError if a file was changed since the job was made, its size or not."""
        for path, before, now in zip(
            (*self.files, *self.validation), self._seen, self._look(), strict=True
        ):
            if now != before:
                raise UserError(f"{path} changed while it was read: prepare it again")

    def _check_apart(self) -> None:
        """Raise UserError for a validation file that is one of the source's too."""
        count = len(self.files)
        trained_on = {(seen.device, seen.inode) for seen in self._seen[:count]}
        for path, seen in zip(self.validation, self._seen[count:], strict=True):
            if (seen.device, seen.inode) in trained_on:
                raise UserError(
                    f"the validation file {path} is in the source too: it would be scored on what "
                    "it was trained on; name the other files by a glob, or move it"
                )

    def _look(self) -> list[Seen]:
        return [Seen.of(path) for path in (*self.files, *self.validation)]

    def _slack(self, cut: int) -> int:
        """Characters by which the one document may be cut elsewhere: half of the smaller part."""
        held_out = cut * self.val_fraction / (1 - self.val_fraction)
        return int(min(cut, held_out) / 2)

    def _read(self, files: Sequence[Path], on_bytes: Callable[[int], object]) -> Iterator[Piece]:
        if isinstance(self.field, PairFields):
            return read_pairs(files, self.field, on_bytes)
        return read_documents(files, self.field, on_bytes)


def share_of(what: str, index: int) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    digest = hashlib.blake2b(f"{what} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def place_to_cut(job: ShardsJob) -> int | None:
    """Where to cut a source of one document in two, in characters; None if it has several."""
    length = 0
    for document, text in job.pieces():
        if document > 0:
            return None
        length += len(text)
    if not length:
        raise UserError(f"{job.source} is empty: there is no text to prepare")
    if job.validation or not 0 < job.val_fraction < 1:
        return None
    return min(max(1, int(length * (1 - job.val_fraction))), length - 1)


def _cut_in_two(pieces: Iterable[Piece], place: int, slack: int) -> Iterator[Piece]:
    """The one document as two, cut within `slack` characters of `place`."""
    seen = document = 0
    for _, text in pieces:
        if document == 0 and place < seen + len(text):
            end = _cut_near(text, place - seen, slack)
            if end:
                yield Piece(0, text[:end])
            yield Piece(1, text[end:])
            document = 1
        else:
            yield Piece(document, text)
        seen += len(text)


def _cut_near(text: str, at: int, slack: int) -> int:
    """Where a line starts within `slack` of `at`; if none does, a word; otherwise `at`."""
    for mark in ("\n", " "):
        after = text.find(mark, at, min(at + slack, len(text) - 1)) + 1
        found = after or text.rfind(mark, max(at - slack, 0), at) + 1
        if found:
            return found
    return at
