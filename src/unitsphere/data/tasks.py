"""The classification tasks of GLUE that come with field names, and the fields of any other file."""

from dataclasses import dataclass, replace
from typing import Literal

from unitsphere.errors import UserError

TaskName = Literal["sst2", "mrpc", "rte", "cola"]
Metric = Literal["accuracy", "f1", "matthews"]


@dataclass(frozen=True)
class Fields:
    """Where an example's text, second text and label stand: names, the first that a file has.

    `columns` are those of text, label and text2 in a TSV file without a header, from 1; with
    `header` such a file is recognised by its first line, without there is no header. `labels`
    are spellings of each class, in the order of the classes (none: whatever the file holds).
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    text2: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    header: bool = True
    labels: tuple[tuple[str, ...], ...] = ()

    def names(self) -> list[tuple[str, ...]]:
        """The names of text, label and, of pairs, the second text."""
        return [names for names in (self.text, self.label, self.text2) if names]


@dataclass(frozen=True)
class Task:
    """A task: its fields, and the metric that decides between learning rates."""

    fields: Fields
    metric: Metric


BINARY = (("0",), ("1",))

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
            labels=(("0", "entailment"), ("1", "not_entailment")),
        ),
        "accuracy",
    ),
    "cola": Task(
        Fields(("sentence", "x"), ("label", "y"), columns=(4, 2), labels=BINARY), "matthews"
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
            "which fields hold text and label? Give --task sst2, mrpc, rte or cola, "
            "or --text and --label"
        )
    found = Fields(texts, labels, pairs, labels=preset.labels)
    if not named:
        return replace(found, columns=preset.columns)
    if not any(numbers):
        return found
    if not all(names[0].isdecimal() for names in found.names()):
        raise UserError("of a file without a header, give all of the fields as column numbers")
    return replace(found, columns=tuple(int(names[0]) for names in found.names()), header=False)
