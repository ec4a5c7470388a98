"""The items of a task, checked before a model sees one: what cannot be scored is an error.

The harness itself writes a null field as the word "None", and gives an item without a label the
score 0. Here both are errors that name the file and the line.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any
from unittest import mock

import jinja2
import lm_eval.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask, Task

from unitsphere.errors import UserError
from unitsphere.inference.lm_eval_data import WHERE

Document = Mapping[str, Any]
ERROR_LENGTH = 300
"""Most characters of the harness's error that are repeated."""


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
    for document in itertools.islice(items, limit):
        with in_one_line(place(document)):
            CHECKS[str(task.OUTPUT_TYPE)](task, document)


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


class Rehearsal(LM):
    """Answers that need no model: a task's metrics and filters fail at once if they must."""

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        return [(-1.0, False) for _ in requests]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        return [-1.0 for _ in requests]

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        return ["an answer" for _ in requests]


CHECKS: dict[str, Callable[[Any, Document], None]] = {
    "multiple_choice": check_choice,
    "loglikelihood": check_likelihood,
    "loglikelihood_rolling": check_likelihood,
    "generate_until": check_generation,
}
