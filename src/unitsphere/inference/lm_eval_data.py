"""The documents of a task: what the task files under tasks/ name as their `custom_dataset`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from lm_eval.utils import general_detokenize

from unitsphere.data.jsonl import json_records
from unitsphere.data.tasks import marked_pronoun
from unitsphere.errors import UserError

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
    `data`, or without it beside the task file `config_source`; where `data` is a file, that is it.
    `rename` maps a field that the task uses to the field of the line that holds it. Everything
    but `file` comes from the harness's metadata. Raises UserError if there is no such file, or
    more than one.
    """
    path = find_file(file, config_source, data)
    fields = dict(rename or {})
    rows: list[dict[str, Any]] = []
    for record in json_records(path):
        row = dict(record.values)
        for to, name in fields.items():
            if name in record.values:
                row[to] = record.text(name)
        rows.append(row)
    if not rows:
        raise UserError(f"{path} is empty: there is nothing to evaluate")
    return {"test": Dataset.from_list(rows)}


def find_file(file: str, config_source: str, data: str | None) -> Path:
    """The one file that the pattern `file` fits."""
    task = Path(config_source).stem
    if data is not None and Path(data).is_file():
        return Path(data)
    folder = Path(data) if data is not None else Path(config_source).parent
    found = [Path(file)] if Path(file).is_absolute() else sorted(folder.glob(file))
    found = [path for path in found if path.is_file()]
    if not found:
        where = f"{folder} holds" if data is not None else "there is"
        raise UserError(
            f"task {task}: {where} no file {file}: give --task_data the file, or the folder of it"
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
        found = dict(marked_pronoun(document))
        return {**found, "text": general_detokenize(found["text"])}

    return documents.map(marked)


def fitting_options(documents: Dataset) -> Dataset:
    """The Winograd schemas with options that fit the pronoun's place, as the harness has them.

    An option for a possessive pronoun ends in 's, and its first word is lower-cased unless it
    begins a sentence.
    """

    def fitted(document: dict[str, Any]) -> dict[str, Any]:
        text = document["text"].replace("  ", " ")
        begins = text[document["pronoun_loc"] - 2] == "."
        ending = "'s" if document["pronoun"].lower() in POSSESSIVE else ""
        options = [f"{option}{ending}" for option in document["options"]]
        if not begins:
            options = [lowered(option) for option in options]
        return {**document, "text": text, "options": options}

    return documents.map(fitted)


def lowered(option: str) -> str:
    """An option whose first word is lower-cased if it is an article or a pronoun."""
    first, space, rest = option.partition(" ")
    return f"{first.lower()}{space}{rest}" if first in LOWERED else option
