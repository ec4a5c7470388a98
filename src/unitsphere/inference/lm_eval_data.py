"""The documents of a task: what the task files under tasks/ name as their `custom_dataset`."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset
from lm_eval.utils import general_detokenize

from unitsphere.data.documents import json_records
from unitsphere.data.tasks import marked_pronoun
from unitsphere.errors import UserError
from unitsphere.files import check_given

WHERE = "unitsphere_place"
"""The field that says where an item stands: "line 3 of FILE"."""
POSSESSIVE = ("my", "his", "her", "our", "their")
LOWERED = ("A", "An", "The", "She", "He", "It", "They", "My", "His", "Her", "Their")
"""First words of an option that are lower-cased within a sentence."""


def local(
    file: str,
    config_source: str = "",
    data: str | None = None,
    rename: Mapping[str, str] | None = None,
    **metadata: object,
) -> dict[str, Dataset]:
    """The lines of one local JSONL file as the split "test".

    `file` (the task's dataset_kwargs) is a name or a pattern that one file fits, in the folder
    `data`, or without it next to the task file `config_source`; where `data` is a file, that is it.
    `rename` maps a field that the task uses to the field of the line that holds it. Everything
    but `file` comes from the harness's metadata. Raises UserError if there is no such file, or
    more than one.
    """
    path = find_file(file, config_source, data)
    if data is None:  # next to the task file, in a folder that may be somebody else's
        check_given(path, within=Path(config_source).parent)
    fields = dict(rename or {})
    rows: list[dict[str, Any]] = []
    for record in json_records(path):
        row = dict(record.values)
        for to, name in fields.items():
            if name in record.values:
                row[to] = record.text(name)
        rows.append(row | {WHERE: record.where})
    if not rows:
        raise UserError(f"{path} is empty: there is nothing to evaluate")
    return {"test": as_dataset(rows)}


def as_dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Rows as the harness has them: every row has the fields of all, null where it has none."""
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = {name: [row.get(name) for row in rows] for name in names}
    for name, column in columns.items():
        try:
            pyarrow.array(column)
        except (pyarrow.ArrowException, OverflowError) as error:
            odd = bisect_left(range(len(rows)), True, key=lambda i: not alike(column[: i + 1]))
            raise UserError(
                f"{rows[odd][WHERE]}: field '{name}' is of another type than on the lines before: "
                f"{error}"
            ) from error
    return Dataset.from_dict(columns)


def alike(column: Sequence[Any]) -> bool:
    """Whether values are of one type."""
    try:
        pyarrow.array(column)
    except (pyarrow.ArrowException, OverflowError):
        return False
    return True


def find_file(file: str, config_source: str, data: str | None) -> Path:
    """The one file that the pattern `file` fits."""
    task = Path(config_source).stem
    if data is not None and Path(data).is_file():
        return Path(data)
    folder = Path(data) if data is not None else Path(config_source).parent
    found = [path for path in sorted(folder.glob(file)) if path.is_file()]
    if not found:
        where = f"{folder} holds" if data is not None else "there is"
        raise UserError(
            f"task {task}: {where} no file {file}: give --task_data the file, or its folder"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise UserError(
            f"task {task}: {len(found)} files in {folder} fit {file} ({names}, …): give "
            "--task_data the one to take"
        )
    return found[0]


def marked_pronouns(documents: Dataset) -> Dataset:
    """SuperGLUE's WSC with the pronoun between asterisks, as the harness asks it."""

    def marked(document: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(document.get("text"), str):
            raise UserError(f"{document[WHERE]}: field 'text' is missing, or null")
        found = dict(marked_pronoun(document))
        return {**found, "text": general_detokenize(found["text"])}

    return documents.map(marked)


def fitting_options(documents: Dataset) -> Dataset:
    """The Winograd schemas with options that fit the pronoun's place, as the harness has them.

    An option for a possessive pronoun ends in 's, and its first word is lower-cased unless it
    begins a sentence.
    """

    def fitted(document: dict[str, Any]) -> dict[str, Any]:
        check_schema(document)
        text = document["text"].replace("  ", " ")
        begins = text[document["pronoun_loc"] - 2] == "."
        ending = "'s" if document["pronoun"].lower() in POSSESSIVE else ""
        options = [f"{option}{ending}" for option in document["options"]]
        if not begins:
            options = [lowered(option) for option in options]
        return {**document, "text": text, "options": options}

    return documents.map(fitted)


def check_schema(document: Mapping[str, Any]) -> None:
    """Raise UserError unless a Winograd schema has what its options are fitted to."""
    kinds = {"text": str, "pronoun": str, "pronoun_loc": int, "options": list}
    for name, kind in kinds.items():
        if not isinstance(document.get(name), kind):
            raise UserError(f"{document[WHERE]}: field '{name}' is missing, or null")
    if not all(isinstance(option, str) for option in document["options"]):
        raise UserError(f"{document[WHERE]}: field 'options' holds a null")
    if not 0 <= document["pronoun_loc"] < len(document["text"]):
        raise UserError(f"{document[WHERE]}: field 'pronoun_loc' is outside the text")


def lowered(option: str) -> str:
    """An option whose first word is lower-cased if it is an article or a pronoun."""
    first, space, rest = option.partition(" ")
    return f"{first.lower()}{space}{rest}" if first in LOWERED else option
