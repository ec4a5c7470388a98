"""The settings of a fine-tuning, and its examples: train, tune (for the rate), test (reported)."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path

import numpy as np

from unitsphere.config import check_seed
from unitsphere.data.labelled import (
    Example,
    class_indices,
    class_names,
    encode_examples,
    read_labelled,
    stratified,
)
from unitsphere.data.tasks import TASKS, Fields, Metric, TaskName
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.files import open_given
from unitsphere.models.classifier import Pool

TEST_FRACTION = 0.2
"""Share of the data file that is held out as the test part where no test file is given."""
TUNE_FRACTION = 0.2
"""Share of the remaining examples that choose the learning rate."""
SPLIT_SEED = 0
"""The split is the same for every seed and rate, so that they are compared on the same examples."""


@dataclass(frozen=True)
class FinetuneConfig:
    """What to fine-tune, on what, and how."""

    run: str
    data: str
    test: str | None = None
    task: TaskName | None = None
    text: str | None = None
    text2: str | None = None
    label: str | None = None
    lr: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    seed: tuple[int, ...] = (0, 1, 2)
    epochs: int = 3
    batch: int = 32
    pool: Pool | None = None
    scratch: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1: {getattr(self, name)}")
        if not self.lr or not all(0 < lr < math.inf for lr in self.lr):
            raise UserError(f"--lr takes numbers above 0: {' '.join(map(str, self.lr))}")
        if not self.seed:
            raise UserError("--seed takes numbers from 0 on")
        for seed in self.seed:
            check_seed("--seed", seed)
        for name in ("lr", "seed"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UserError(f"--{name} names a value twice")

    @property
    def metric(self) -> Metric:
        """The score that decides between rates."""
        return TASKS[self.task].metric if self.task else "accuracy"


@dataclass(frozen=True)
class Labelled:
    """Token sequences (int64, each [length]) and the class of each."""

    tokens: list[np.ndarray]
    truth: list[int]

    def __len__(self) -> int:
        return len(self.truth)

    def select(self, indices: Sequence[int]) -> "Labelled":
        """The examples at `indices`."""
        return Labelled([self.tokens[i] for i in indices], [self.truth[i] for i in indices])


@dataclass(frozen=True)
class Parts:
    """Disjoint examples to train on, to choose by, and to report; the classes' names in order."""

    classes: list[str]
    train: Labelled
    tune: Labelled
    test: Labelled
    truncated: int

    def sizes(self) -> dict[str, int]:
        """Part -> number of examples."""
        return {"train": len(self.train), "tune": len(self.tune), "test": len(self.test)}

    def overlap(self) -> int:
        """How many examples of the test part are word for word in the other two."""
        known = {tokens.tobytes() for part in (self.train, self.tune) for tokens in part.tokens}
        return sum(tokens.tobytes() in known for tokens in self.test.tokens)

    def majority(self) -> int:
        """The class that is most frequent in the training part."""
        return Counter(self.train.truth).most_common(1)[0][0]


def open_parts(
    data: str, test: str | None, fields: Fields, tokenizer: Tokenizer, length: int
) -> Parts:
    """Read and split the examples, each as at most `length` tokens.

    Raises UserError for files that cannot be used, and where a part would be empty.
    """
    if test is not None and fingerprint(data) == fingerprint(test):
        raise UserError(f"{test} is the training file itself: give --test another, or leave it out")
    examples = read_labelled(data, fields)
    classes = class_names(examples, fields)
    cut = 0

    def labelled(examples: list[Example], path: str) -> Labelled:
        nonlocal cut
        sequences = encode_examples(examples, tokenizer, length)
        cut += sequences.truncated
        return Labelled(sequences.tokens, class_indices(examples, classes, path))

    everything = labelled(examples, data)
    rest, reported = list(range(len(everything))), None
    if test is None:
        rest, held_out = stratified(everything.truth, TEST_FRACTION, SPLIT_SEED)
        reported = everything.select(held_out)
    else:
        reported = labelled(read_labelled(test, fields), test)
    train, tune = stratified(everything.truth, TUNE_FRACTION, SPLIT_SEED + 1, among=rest)
    if not tune or not len(reported):
        raise UserError(f"{data} has {len(examples)} examples: too few to split")
    return Parts(classes, everything.select(train), everything.select(tune), reported, cut)


def fingerprint(path: str) -> str:
    """sha256 of a file's bytes; UserError if it cannot be read."""
    with open_given(Path(expanduser(path))) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
