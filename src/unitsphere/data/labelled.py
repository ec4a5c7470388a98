"""Labelled texts for classification: read from TSV or JSONL, as token sequences, in padded batches.

TSV is as GLUE writes it: UTF-8, a tab between columns, no quoting, so a quotation mark is itself.
JSONL holds an object a line. Empty lines are skipped; every mistake names its line. Examples that
a task leaves out are counted in a line on stderr. A sequence is separator, text, separator; for a
pair the second text and a separator follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import expanduser  # unlike Path's, it leaves an unknown ~user as it is
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unitsphere.config import did_you_mean
from unitsphere.data.documents import checked_text, is_json_lines, json_object
from unitsphere.data.tasks import Fields
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.files import read_bytes

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 1 << 30
"""Most bytes of a file of examples, which is read whole."""


@dataclass(frozen=True)
class Example:
    """One labelled text, or pair of texts; `line` is where it stands in its file, from 1."""

    text: str
    text2: str | None
    label: str
    line: int


def read_labelled(path: Path | str, fields: Fields) -> list[Example]:
    """The examples of a file of JSON lines or, under any other name, of TSV, in order.

    Labels are spelled as the first spelling in `fields.labels`. Raises UserError, with the line's
    number, for a missing field, a text or label of the wrong type, and an unknown label.
    """
    path = Path(expanduser(path))
    lines = _lines(path)
    rows = _json_rows if is_json_lines(path) or path.suffix.lower() == ".json" else _tsv_rows
    examples, left_out = [], 0
    for number, values in rows(lines, fields, path):
        if _is_left_out(values, fields):
            left_out += 1
            continue
        where = f"line {number} of {path}"
        text, label, *second = values
        pair = _text(second[0], fields.text2, where) if second else None
        spelled = _label(label, fields, where)
        examples.append(Example(_text(text, fields.text, where), pair, spelled, number))
    if not examples:
        raise UserError(f"{path} holds no examples")
    if left_out:
        print(f"{path}: {left_out:,} lines without a label or text are left out", file=sys.stderr)
    return examples


def _is_left_out(values: Sequence[Any], fields: Fields) -> bool:
    """Whether a line (text, label and perhaps second text) is one that its task leaves out."""
    if not values or str(values[1]) in fields.unlabelled:
        return True
    return fields.ragged and not all(str(value).strip() for value in values)


def class_names(examples: Sequence[Example], fields: Fields) -> list[str]:
    """The classes in order: the task's, or the file's labels sorted (numbers by value).

    Raises UserError unless the examples hold at least two.
    """
    found = {example.label for example in examples}
    if len(found) < 2:
        raise UserError(f"all {len(examples)} labels are '{found.pop()}': nothing to classify")
    if fields.labels:
        return [spellings[0] for spellings in fields.labels]
    return sorted(found, key=_order)


def class_indices(
    examples: Sequence[Example], classes: Sequence[str], path: Path | str
) -> list[int]:
    """Each example's class as its index in `classes`; UserError for an unknown label."""
    index = {name: i for i, name in enumerate(classes)}
    for example in examples:
        if example.label not in index:
            raise UserError(
                f"line {example.line} of {path}: label '{example.label}' is not among those of "
                f"the training data ({_listed(classes)})"
            )
    return [index[example.label] for example in examples]


def _lines(path: Path) -> list[str]:
    try:
        text = read_bytes(path, limit=LIMIT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid UTF-8 at byte {error.start}") from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _json_rows(
    lines: Sequence[str], fields: Fields, path: Path
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        record = json_object(line, where, '{"text": "...", "label": 1}')
        if fields.reshape is not None:
            record = dict(fields.reshape(record))
        yield number, tuple(record[_field(names, record, where)] for names in fields.names())


def _tsv_rows(
    lines: Sequence[str], fields: Fields, path: Path
) -> Iterator[tuple[int, tuple[str, ...]]]:
    rows = [(n, line.split("\t")) for n, line in enumerate(lines, 1) if line]
    if not rows:
        return
    first, header = rows[0]
    headerless = _headerless(fields, header)
    if headerless:
        columns = [column - 1 for column in fields.columns]
        if not 0 <= min(columns) <= max(columns) < len(header):
            raise UserError(
                f"{path} has {len(header)} columns, and {_listed(fields.columns)} are asked for"
            )
    else:
        where = f"line {first} of {path}"
        columns = [header.index(_field(names, header, where)) for names in fields.names()]
    for number, row in rows[0 if headerless else 1 :]:
        if len(row) != len(header):
            if fields.ragged:
                yield number, ()
                continue
            raise UserError(
                f"line {number} of {path} has {len(row)} columns, the first line {len(header)}"
            )
        yield number, tuple(row[column] for column in columns)


def _headerless(fields: Fields, first: Sequence[str]) -> bool:
    """Whether columns count: there never is a header, or the first line does not name a field."""
    if not fields.header:
        return True
    named = any(name in first for names in fields.names() for name in names)
    return bool(fields.columns) and not named and len(first) >= max(fields.columns)


def _field(names: Sequence[str], known: Sequence[str] | dict[str, Any], where: str) -> str:
    found = next((name for name in names if name in known), None)
    if found is None:
        wanted = " or ".join(f"'{name}'" for name in names)
        hint = did_you_mean(names[0], known)
        fields = "" if "known:" in hint else f"; its fields: {_listed(known)}"
        raise UserError(f"{where} has no field {wanted}{hint}{fields}")
    return found


def _text(value: Any, names: Sequence[str], where: str) -> str:
    """A field's text; UserError for what a tokenizer cannot take, or for an empty one."""
    text = checked_text(value, names[0], where)
    if not text.strip():
        raise UserError(f"{where}: field '{names[0]}' is empty")
    return text


def _label(value: Any, fields: Fields, where: str) -> str:
    """A label as text, spelled as the task spells it first."""
    known = {name for spellings in fields.labels for name in spellings}
    boolean = isinstance(value, bool) and "true" not in known
    if boolean or not isinstance(value, int | str) or not str(value).strip():
        raise UserError(f"{where}: label {value!r} is neither a whole number nor a name")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not fields.labels:
        return label
    for spellings in fields.labels:
        if label in spellings:
            return spellings[0]
    listed = _listed([name for spellings in fields.labels for name in spellings])
    raise UserError(f"{where}: label '{label}' is not one of {listed}")


def _order(label: str) -> tuple[bool, int, str]:
    number = label.removeprefix("-").isdecimal()
    return not number, int(label) if number else 0, label


def _listed(values: Any, most: int = 12) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


@dataclass(frozen=True)
class Sequences:
    """Token sequences (int64, each [length]), and how many were cut to fit."""

    tokens: list[np.ndarray]
    truncated: int

    def __len__(self) -> int:
        return len(self.tokens)


class Rows(NamedTuple):
    """A padded batch: tokens [rows, length] int64, and which of them are real (bool)."""

    tokens: Tensor
    real: Tensor


def encode_examples(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Sequences:
    """Each example as at most `length` tokens; of a pair, the longer text is cut first."""
    first = tokenizer.encode_batch([example.text for example in examples])
    seconds = [example.text2 for example in examples if example.text2 is not None]
    pairs = len(seconds) == len(examples)
    second = tokenizer.encode_batch(seconds) if pairs else [None] * len(examples)
    room = length - (3 if pairs else 2)
    if room < 2:
        raise UserError(f"sequences of {length} tokens leave no room for a text")
    tokens, truncated = [], 0
    for a, b in zip(first, second, strict=True):
        sizes = fitting(len(a), 0 if b is None else len(b), room)
        truncated += sum(sizes) < len(a) + (0 if b is None else len(b))
        parts = [a[: sizes[0]]] if b is None else [a[: sizes[0]], b[: sizes[1]]]
        tokens.append(_joined(parts, tokenizer.separator))
    return Sequences(tokens, truncated)


def fitting(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths of two texts cut to `room` in all, token by token from whichever is longer."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first >= second else (shorter, room - shorter)


def _joined(parts: Sequence[np.ndarray], separator: int) -> np.ndarray:
    mark = np.array([separator])
    pieces = [mark] + [piece for part in parts for piece in (part, mark)]
    return np.concatenate([piece.astype(np.int64) for piece in pieces])


def stratified(
    classes: Sequence[int], fraction: float, seed: int, among: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Split indices in two, (rest, part): `part` has that fraction of every class, by `seed`.

    The same classes and seed give the same split. A class of two or more is in both; one of a
    single example stays in the rest. `among` are the indices to split, by default all.
    """
    generator = np.random.default_rng(seed)
    among = range(len(classes)) if among is None else among
    rest: list[int] = []
    part: list[int] = []
    for wanted in sorted({classes[i] for i in among}):
        members = np.array([i for i in among if classes[i] == wanted])
        generator.shuffle(members)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        part += members[:count].tolist()
        rest += members[count:].tolist()
    return sorted(rest), sorted(part)


def padded_rows(tokens: Sequence[np.ndarray], separator: int) -> Rows:
    """Sequences side by side, filled up with the separator on the right to the longest."""
    import torch

    filled = torch.full((len(tokens), max(map(len, tokens))), separator, dtype=torch.int64)
    real = torch.zeros(filled.shape, dtype=torch.bool)
    for row, sequence in enumerate(tokens):
        filled[row, : len(sequence)] = torch.from_numpy(sequence)
        real[row, : len(sequence)] = True
    return Rows(filled, real)


def shuffled_batches(
    indices: Sequence[int], rows: int, epochs: int, seed: int
) -> Iterator[list[int]]:
    """Batches of indices, each epoch in a new order by (seed, epoch); its last may be smaller."""
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(indices))
        for start in range(0, len(order), rows):
            yield [indices[i] for i in order[start : start + rows]]
