"""The three parts of a fine-tuning's examples: train, tune (chooses the rate), test (reported)."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path

from unitsphere.data.labelled import (
    Example,
    class_indices,
    class_names,
    encode_examples,
    read_labelled,
    stratified,
)
from unitsphere.data.tasks import Fields
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.files import open_given
from unitsphere.training.finetune_fit import Labelled
from unitsphere.training.scores import Scores, scores

TEST_FRACTION = 0.2
"""Share of the data file that is held out as the test part where no test file is given."""
TUNE_FRACTION = 0.2
"""Share of the remaining examples that choose the learning rate."""
SPLIT_SEED = 0
"""The split is the same for every seed and rate, so that they are compared on the same examples."""


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
        """How many examples of the test part stand word for word in the other two."""
        known = {tokens.tobytes() for part in (self.train, self.tune) for tokens in part.tokens}
        return sum(tokens.tobytes() in known for tokens in self.test.tokens)

    def majority(self) -> int:
        """The class that is most frequent in the training part."""
        return Counter(self.train.truth).most_common(1)[0][0]

    def baseline(self) -> Scores:
        """Scores on the test part of always answering that class."""
        return scores(self.test.truth, [self.majority()] * len(self.test), len(self.classes))


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
