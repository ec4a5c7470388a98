"""Text to token ids and back: bytes, a byte-level BPE, or any Hugging Face tokenizer.json.

Every tokenizer has a separator, the token that a document follows. Text never encodes to it: where
"<|endoftext|>" stands in a text it is encoded as ordinary characters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol
from unicodedata import normalize

from unitsphere.config import parse_json
from unitsphere.errors import UserError
from unitsphere.files import read_text, write_text

if TYPE_CHECKING:
    import numpy as np

SEPARATOR = "<|endoftext|>"
SAMPLED, STRETCHES, STRETCH = 64, 8, 1024
"""Of `text_lost`: texts, most stretches of each, and characters of a stretch."""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How a tokenizer decodes bytes that are not (yet) a character."""
_SEPARATORS = (SEPARATOR, "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]", "[SEP]")
_BYTES = {"type": "bytes"}
LARGEST_BPE = 1_000_000
"""Most entries of a BPE: memory for all of them is taken at once."""


class Tokenizer(Protocol):
    """What every tokenizer offers.

    vocab_size: one more than the largest id. json: the text of its file, which `load_tokenizer`
    reads. fingerprint: equal for equal tokenizers.
    """

    vocab_size: int
    separator: int
    fingerprint: str
    json: str

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing put before or after."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (uint32 or uint8), on all cores."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without separators; bytes that are not UTF-8 become U+FFFD."""
        ...

    def size(self, ids: Sequence[int]) -> int:
        """UTF-8 bytes of the text of `ids`, those of characters that its ends cut included."""
        ...

    def save(self, path: Path) -> None:
        """Write `json` to a file."""
        ...


class ByteTokenizer:
    """The UTF-8 bytes themselves; the separator is byte 0, which no text holds."""

    vocab_size = 256
    separator = 0
    fingerprint = "bytes"
    json = json.dumps(_BYTES) + "\n"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        import numpy as np

        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i != self.separator).decode(errors="replace")

    def size(self, ids: Sequence[int]) -> int:
        return sum(i != self.separator for i in ids)

    def save(self, path: Path) -> None:
        write_text(path, self.json)


class JsonTokenizer:
    """A Hugging Face tokenizer, from the text of its tokenizer.json."""

    def __init__(self, text: str, where: str) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            self._backend = Backend.from_str(text)
        except Exception as error:  # `tokenizers` raises nothing narrower.
            raise UserError(f"{where} is not a tokenizer.json that can be read: {error}") from error
        self.json, self._where = text, where
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()
        ids = (self._backend.token_to_id(name) for name in _SEPARATORS)
        separator = next((i for i in ids if i is not None), None)
        if separator is None:
            raise UserError(f"{where} has no separator token, such as {SEPARATOR} or </s>")
        self.separator: int = separator
        self.vocab_size = max(self._backend.get_vocab().values()) + 1
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        with self._failing("encode a text"):
            encoding = self._backend.encode(text, add_special_tokens=False)
        if self.separator not in encoding.ids:
            return encoding.ids
        parts = self._parts(text, zip(encoding.ids, encoding.offsets, strict=True))
        return [token for part in parts for token in self.encode(part)]

    def _parts(self, text: str, found: Iterable[tuple[int, tuple[int, int]]]) -> Iterator[str]:
        """A text cut within all that became the separator, after its first character.

        The model of a Unigram tokenizer knows "</s>" as a piece of text, as special as it may be.
        """
        start = 0
        for token, (begin, end) in found:
            if token != self.separator:
                continue
            if end - begin < 2:
                raise UserError(
                    f"the tokenizer {self._where} makes {text[begin:end]!r} its separator, which "
                    "no text may hold: take another tokenizer, or leave it out of the text"
                )
            yield text[start : begin + 1]
            start = begin + 1
        yield text[start:]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        import numpy as np

        with self._failing("encode a text"):
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        found = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return [
            np.array(self.encode(text), np.uint32) if (ids == self.separator).any() else ids
            for text, ids in zip(texts, found, strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        with self._failing("decode tokens"):
            return self._backend.decode(list(ids), skip_special_tokens=True)

    def size(self, ids: Sequence[int]) -> int:
        from tokenizers import decoders

        if isinstance(self._backend.decoder, decoders.ByteLevel):  # its pieces spell each byte
            spelled, added = self._backend.id_to_token, self._backend.get_added_tokens_decoder()
            parts = (self.decode([i]).encode() if i in added else spelled(i) or "" for i in ids)
            return sum(map(len, parts))
        text = self.decode(ids)
        whole = text.strip(UNFINISHED)
        return len(whole.encode()) + len(text) - len(whole)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Make one line of what `tokenizers` raises: a bare Exception, or a panic for a bug."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise UserError(f"the tokenizer {self._where} cannot {what}: {error}") from error
            raise

    def save(self, path: Path) -> None:
        write_text(path, self.json)


def load_tokenizer(spec: str | Path, within: Path | None = None) -> Tokenizer:
    """The tokenizer named "bytes", of a tokenizer.json, or of a folder that holds one.

    within: no link may lead out of this folder, which somebody else may have made.
    """
    if spec == "bytes":
        return ByteTokenizer()
    if bpe_size(spec) is not None:
        raise UserError(f"{spec} is trained on a source: run 'unitsphere prepare' first")
    text, document = _read(spec, within)
    return ByteTokenizer() if document == _BYTES else JsonTokenizer(text, str(spec))


def text_lost(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """Share of a sample of the texts that does not come back: decode(encode(x)) is not x.

    The sample is a few stretches of each of the first texts. White space at a stretch's ends is
    not compared: some tokenizers put a space before a text and remove it again. Nor is the way in
    which Unicode writes an accent (NFC), which some of them change. If anything is lost, bits per
    byte are void: they count bytes that the tokens do not hold.
    """
    found = [lost for text in islice(texts, SAMPLED) for lost in stretches_lost(tokenizer, text)]
    return sum(found) / len(found) if found else 0.0


class Sample:
    """SAMPLED of the texts that are added, drawn evenly; equal texts give an equal sample."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._seen, self._random = 0, Random(0)
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Take in a text; of more than SAMPLED each is kept with the same probability."""
        self._seen += 1
        if len(self.texts) < SAMPLED:
            self.texts.append(text)
        elif (place := self._random.randrange(self._seen)) < SAMPLED:
            self.texts[place] = text


def stretches_lost(tokenizer: Tokenizer, text: str) -> Iterator[bool]:
    """For stretches evenly spread over a text: whether each is lost."""
    count = min(len(text) // STRETCH + 1, STRETCHES)
    for begin in (i * len(text) // count for i in range(count)):
        part = text[begin : begin + STRETCH]
        back = tokenizer.decode(tokenizer.encode(part))
        yield normalize("NFC", back).strip() != normalize("NFC", part).strip()


def bpe_size(spec: str | Path) -> int | None:
    """The N of "bpe:N", or None for any other spec; a `UserError` if N cannot be."""
    name, colon, size = str(spec).partition(":")
    if name != "bpe" or not colon:
        return None
    digits = size.lstrip("0")
    known = digits.isdecimal() and len(digits) <= len(str(LARGEST_BPE))
    if not known or not 257 <= int(digits) <= LARGEST_BPE:
        raise UserError(
            f"tokenizer '{str(spec)[:40]}': N in bpe:N is a number from 257 (256 bytes and 1) to "
            f"{LARGEST_BPE:,}"
        )
    return int(digits)


def is_name(spec: str | Path) -> bool:
    """Whether a spec is "bytes" or "bpe:N" rather than a path."""
    return spec == "bytes" or bpe_size(spec) is not None


def vocab_size_of(spec: str, extra: int = 0) -> int:
    """The number of ids a model needs for a tokenizer spec, rounded up to a multiple of 64.

    `extra` counts ids beyond the tokenizer's own, such as a mask token. Reads at most a JSON file:
    nothing is trained.
    """
    size = 256 if spec == "bytes" else bpe_size(spec)
    if size is None:
        document = _read(spec)[1]
        size = 256 if document == _BYTES else _largest_id(document) + 1
    return -(-(size + extra) // 64) * 64


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` entries, the separator and all 256 bytes among them.

    Equal texts give equal tokenizers. All distinct words of `texts` are held in memory.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore
    backend.decoder = decoders.ByteLevel()  # type: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return JsonTokenizer(backend.to_str(pretty=True), f"bpe:{size}")


def _read(spec: str | Path, within: Path | None = None) -> tuple[str, dict[str, Any]]:
    path = Path(expanduser(spec))
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        text = read_text(path, within)
    except UserError as error:
        raise UserError(
            f"{error}; a tokenizer is 'bytes', 'bpe:N', or the path of a tokenizer.json"
        ) from error
    try:
        document = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if document != _BYTES and not (isinstance(document, dict) and "model" in document):
        raise UserError(f"{path} is not a Hugging Face tokenizer.json: it has no 'model'")
    return text, document


def _largest_id(document: dict[str, Any]) -> int:
    try:
        vocab = document["model"].get("vocab", ())
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        added = [token["id"] for token in document.get("added_tokens") or ()]
        return max(map(int, [*ids, *added]), default=-1)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"a tokenizer.json whose vocabulary cannot be read: {error}") from error
