"""The tasks of GLUE and SuperGLUE that come with field names, and the fields of any other file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from unitsphere.errors import UserError

TaskName = Literal["sst2", "mrpc", "rte", "cola", "mnli", "qnli", "qqp", "wsc"]
Metric = Literal["accuracy", "f1", "matthews"]


@dataclass(frozen=True)
class Fields:
    """Where an example's text, second text and label stand: names, the first that a file has.

    `columns` are those of text, label and text2 in a TSV file without a header, from 1; with
    `header` such a file is recognised by its first line, without there is no header. `labels`
    are spellings of each class, in the order of the classes (none: whatever the file holds).
    `unlabelled` are labels of examples that have no class; such examples are left out. `ragged`:
    the published file has broken lines (columns missing, no text), which are left out. `reshape`
    is given each object of a JSONL file and returns the one whose fields are read.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    text2: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    header: bool = True
    labels: tuple[tuple[str, ...], ...] = ()
    unlabelled: tuple[str, ...] = ()
    ragged: bool = False
    reshape: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def names(self) -> list[tuple[str, ...]]:
        """The names of text, label and, of pairs, the second text."""
        return [names for names in (self.text, self.label, self.text2) if names]


@dataclass(frozen=True)
class Task:
    """A task: its fields, and the metric that decides between learning rates."""

    fields: Fields
    metric: Metric


BINARY = (("0",), ("1",))
ENTAILMENT = (("0", "entailment"), ("1", "not_entailment"))


def marked_pronoun(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """WSC's record with its pronoun between asterisks and its `target` unfolded.

    The pronoun is word number `span2_index` of the text. A record whose pronoun is not there stays
    as it is.

    >>> marked_pronoun({"text": "Ann says she won.", "span2_index": 2, "span2_text": "she"})["text"]
    'Ann says *she* won.'
    """
    target = record.get("target")
    flat = {**record, **target} if isinstance(target, Mapping) else dict(record)
    text, place, pronoun = (flat.get(key) for key in ("text", "span2_index", "span2_text"))
    if not (isinstance(text, str) and isinstance(place, int) and isinstance(pronoun, str)):
        return flat
    words = text.split()
    before = " ".join(words[:place])
    after = " ".join(words[place:])
    if not after.startswith(pronoun):
        return flat
    parts = (before, f"*{pronoun}*{after.removeprefix(pronoun)}")
    return {**flat, "text": " ".join(filter(None, parts))}


# Names of GLUE's own files and of the Hugging Face data sets. CoLA comes without a header (source,
# label, star, sentence), and in a lower-cased variant with the header x, y.
TASKS: dict[TaskName, Task] = {
    "sst2": Task(Fields(("sentence",), ("label",), labels=BINARY), "accuracy"),
    "mrpc": Task(
        Fields(
            ("sentence1", "#1 String"),
            ("label", "Quality"),
            ("sentence2", "#2 String"),
            labels=BINARY,
        ),
        "f1",
    ),
    "rte": Task(
        Fields(
            ("sentence1",),
            ("label",),
            ("sentence2",),
            labels=ENTAILMENT,
        ),
        "accuracy",
    ),
    "cola": Task(
        Fields(("sentence", "x"), ("label", "y"), columns=(4, 2), labels=BINARY), "matthews"
    ),
    "mnli": Task(
        Fields(
            ("sentence1", "premise"),
            ("gold_label", "label"),
            ("sentence2", "hypothesis"),
            labels=(("0", "entailment"), ("1", "neutral"), ("2", "contradiction")),
            unlabelled=("-",),  # the annotators do not agree
        ),
        "accuracy",
    ),
    "qnli": Task(Fields(("question",), ("label",), ("sentence",), labels=ENTAILMENT), "accuracy"),
    "qqp": Task(
        Fields(
            ("question1",),
            ("is_duplicate", "label"),
            ("question2",),
            labels=BINARY,
            ragged=True,
        ),
        "accuracy",
    ),
    "wsc": Task(
        Fields(
            ("text",),
            ("label",),
            ("span1_text",),
            labels=(("0", "false"), ("1", "true")),
            reshape=marked_pronoun,
        ),
        "accuracy",
    ),
}


def fields_of(
    task: TaskName | None, text: str | None, text2: str | None, label: str | None
) -> Fields:
    """The fields of a task, with those named by the user in their place.

    Numbers name columns of a TSV file without a header, from 1. Raises UserError where neither
    says which field holds the text or the label, or where names and numbers are mixed.
    """
    preset = TASKS[task].fields if task else Fields((), ())
    named = [name for name in (text, text2, label) if name is not None]
    numbers = [name.isdecimal() for name in named]
    if any(numbers) and not all(numbers):
        raise UserError(
            f"--text, --text2 and --label are {', '.join(named)}: give names of a header, or for "
            "a file without one only column numbers"
        )
    texts = (text,) if text else preset.text
    labels = (label,) if label else preset.label
    pairs = (text2,) if text2 else preset.text2
    if not texts or not labels:
        raise UserError(
            f"which fields hold text and label? Give --task ({', '.join(TASKS)}), "
            "or --text and --label"
        )
    found = replace(preset, text=texts, label=labels, text2=pairs, columns=())
    if not named:
        return replace(found, columns=preset.columns)
    if not any(numbers):
        return found
    if not all(names[0].isdecimal() for names in found.names()):
        raise UserError("of a file without a header, give all of the fields as column numbers")
    return replace(found, columns=tuple(int(names[0]) for names in found.names()), header=False)
