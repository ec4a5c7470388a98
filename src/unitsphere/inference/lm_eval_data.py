"""The items of a task: read from local files, and checked before a model sees one.

The task files under tasks/ name `local` as their `custom_dataset`. The harness itself writes a null
field as the word "None", and gives an item without a label the score 0. Here what cannot be scored
is an error that names the file and the line.
"""

import functools
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any
from unittest import mock

import jinja2
import lm_eval.utils
import pyarrow
from datasets import Dataset
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.api.task import ConfigurableTask, Task

from unitsphere.data.documents import check_texts, json_records
from unitsphere.data.tasks import marked_pronoun
from unitsphere.errors import UserError
from unitsphere.files import check_given

Document = Mapping[str, Any]
WHERE = "unitsphere_place"
"""The field that says where an item stands: "line 3 of FILE"."""
POSSESSIVE = ("my", "his", "her", "our", "their")
LOWERED = ("A", "An", "The", "She", "He", "It", "They", "My", "His", "Her", "Their")
"""First words of an option that are lower-cased within a sentence."""
ERROR_LENGTH = 300
"""Most characters of the harness's error that are repeated."""


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
    more than one, and for a line that has only the field that is renamed.
    """
    path = find_file(file, config_source, data)
    if data is None:  # next to the task file, in a folder that may be somebody else's
        check_given(path, within=Path(config_source).parent)
    fields = dict(rename or {})
    rows: list[dict[str, Any]] = []
    for record in json_records(path):
        row = dict(record.values)
        for to, name in fields.items():
            if name in record.values or to in record.values:  # never the field `to` silently
                row[to] = record.text(name)
        check_texts(row, record.where)
        rows.append(row | {WHERE: record.where})
    if not rows:
        raise UserError(f"{path} is empty: there is nothing to evaluate")
    return {"test": as_dataset(rows)}


def as_dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Rows as the harness has them: every row has the fields of all, null where it has none."""
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
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
        return {**found, "text": lm_eval.utils.general_detokenize(found["text"])}

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


class Null(jinja2.StrictUndefined):
    """A field that is missing or null: a template that shows it fails, in a list too."""

    __repr__ = jinja2.Undefined._fail_with_undefined_error


@contextmanager
def strict_harness(trusted: bool) -> Iterator[None]:
    """The harness, patched: templates fail for null fields, and a bad first item names its place.

    Unless `trusted`, templates run in Jinja's sandbox, which keeps them from everything but their
    item: no file, process or module.
    """
    kind = jinja2.Environment if trusted else ImmutableSandboxedEnvironment
    environment = kind(undefined=Null, keep_trailing_newline=True, finalize=shown)
    environment.filters["regex_replace"] = lm_eval.utils.regex_replace
    environment.filters["int"] = whole_number
    compiled = functools.lru_cache(environment.from_string)

    def apply(template: str, document: Document) -> str:
        try:
            fields = {key: value for key, value in document.items() if value is not None}
            return compiled(template).render(**without_nulls(fields))
        except jinja2.UndefinedError as error:
            raise UserError(f"{place(document)}: {error.message} (missing, or null)") from error

    with (
        mock.patch.object(lm_eval.utils, "apply_template", apply),
        mock.patch.object(ConfigurableTask, "__init__", begin_task),
    ):
        yield


harness_begins = ConfigurableTask.__init__


def begin_task(task: Any, *arguments: Any, **settings: Any) -> None:
    """The harness's constructor, which tries the first item; if that fails, say what is wrong."""
    try:
        harness_begins(task, *arguments, **settings)
    # The error is raised again, unless the check of the item explains it in one line.
    except Exception:
        if hasattr(task, "multiple_target"):  # the last that it sets before
            check_items(task, 1)
        raise


def shown(value: Any) -> Any:
    """The value that a template writes, which must not be None."""
    if value is None:
        raise jinja2.UndefinedError("an expression of the template is None")
    return value


def whole_number(value: Any, default: int | None = None, base: int = 10) -> int:
    """Jinja's filter `int`, which without a default gives 0 for what is not a number."""
    try:
        return int(value, base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        if default is None:
            raise
        return default


def without_nulls(value: Any) -> Any:
    """A value of a document without null fields; in lists a null stays, as one that fails."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [
            Null(name="a value of a list") if one is None else without_nulls(one) for one in value
        ]
    return value


def place(document: Document) -> str:
    """Where an item stands: "line 3 of FILE"."""
    return document.get(WHERE) or f"an item ({str(dict(document))[:60]}…)"


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Errors in a task's own settings or code become one line that starts with `what`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    # The harness raises anything for a task that it cannot read: KeyError, AssertionError, ...
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
        raise UserError(f"{what}: {said} ({last.filename}, line {last.lineno})") from error


def check_items(task: Task, limit: int | None) -> None:
    """Raise UserError for the first item, of the first `limit`, that cannot be scored."""
    items: Any = task.eval_docs
    if not len(items):
        raise UserError("it has no items")
    check_names(task)
    for document in itertools.islice(items, limit):
        with in_one_line(place(document)):
            CHECKS[str(task.OUTPUT_TYPE)](task, document)


def check_names(task: Any) -> None:
    """Refuse the name of a field that no item has: the harness would take it for a text."""
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        name = getattr(task.config, key)
        if isinstance(name, str) and name.isidentifier() and name not in task.features:
            raise UserError(f"no item has the field '{name}' of {key}")


def check_choice(task: Any, document: Document) -> None:
    """A multiple choice needs texts to choose from, and which of them is right."""
    choices, target = task.doc_to_choice(document), task.doc_to_target(document)
    if not isinstance(choices, list) or not choices:
        raise UserError(f"it cannot be scored: its choices are {choices!r:.60}")
    for choice in choices:
        check_text(choice, "a choice")
    if task.multiple_input:
        check_text(target, "the text to score")
        right = task.doc_to_text(document)
    else:
        check_prompt(task, document)
        right = target
    several = isinstance(right, list)
    if several != bool(task.multiple_target) and not task.multiple_input:
        raise UserError("it cannot be scored: some items have one label, and others a list")
    for label in right if several and right else [right]:
        check_label(label, choices)


def check_label(label: Any, choices: list[str]) -> None:
    """A label is the index of a choice from 0, or the choice itself."""
    if isinstance(label, str) and label in choices:
        return
    if not isinstance(label, int) or not 0 <= label < len(choices):
        raise UserError(
            f"it cannot be scored: its label {label!r:.60} is neither a choice nor the index of "
            f"one, from 0 to {len(choices) - 1}"
        )


def check_likelihood(task: Any, document: Document) -> None:
    """A likelihood needs a text to score, and where a prompt is before it, the prompt."""
    check_prompt(task, document)
    check_text(task.doc_to_target(document), "the text to score")


def check_generation(task: Any, document: Document) -> None:
    """What is generated is compared with a text, a number, or several."""
    check_prompt(task, document)
    target = task.doc_to_target(document)
    if task.config.doc_to_choice is not None:
        check_label(target, task.doc_to_choice(document))
        return
    for one in target if isinstance(target, list) and target else [target]:
        check_text(str(one) if isinstance(one, int | float) else one, "the target")


def check_prompt(task: Any, document: Document) -> None:
    """Refuse a prompt that is not text."""
    prompt = task.doc_to_text(document)
    if not isinstance(prompt, str):
        raise UserError(f"it cannot be scored: its prompt is {prompt!r:.60}, which is not text")


def check_text(text: Any, what: str) -> None:
    """Refuse what is not text, or is blank."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"it cannot be scored: {what} is {text!r:.60}")


CHECKS: dict[str, Callable[[Any, Document], None]] = {
    "multiple_choice": check_choice,
    "loglikelihood": check_likelihood,
    "loglikelihood_rolling": check_likelihood,
    "generate_until": check_generation,
}
