"""A fine-tuned classifier back from its folder, for new texts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unitsphere.config import from_dict, read_json
from unitsphere.data.labelled import Example, encode_examples
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.finetune.fit import class_logits
from unitsphere.finetune.folder import CONFIG, MODEL, TOKENIZER, header, load_weights
from unitsphere.models.classifier import Classifier, Pool
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Objective
from unitsphere.training.checkpoint.tensors import check_finite, check_tensors, model_tensors
from unitsphere.training.device import pick_device
from unitsphere.training.recipes import saved_config


@dataclass(frozen=True)
class TextClassifier:
    """A fine-tuned classifier for new texts."""

    model: Classifier
    tokenizer: Tokenizer
    classes: list[str]
    length: int

    def probabilities(
        self, texts: Sequence[str], texts2: Sequence[str] | None = None
    ) -> torch.Tensor:
        """[texts, classes], each row sums to 1; `texts2` are the second texts of pairs."""
        seconds = [None] * len(texts) if texts2 is None else texts2
        examples = [Example(a, b, "", 0) for a, b in zip(texts, seconds, strict=True)]
        tokens = encode_examples(examples, self.tokenizer, self.length).tokens
        return class_logits(self.model, tokens, self.tokenizer.separator).softmax(-1)

    def predict(self, texts: Sequence[str], texts2: Sequence[str] | None = None) -> list[str]:
        """The likeliest class of each text, or pair of texts, by its name."""
        return [self.classes[i] for i in self.probabilities(texts, texts2).argmax(-1).tolist()]


def load_classifier(path: Path | str, device: str = "auto") -> TextClassifier:
    """The classifier of a folder that `unitsphere finetune` wrote.

    Raises UserError if it is not one, or not finished.
    """
    path = Path(path)
    if not (path / MODEL).is_file():
        raise UserError(f"{path} holds no finished fine-tuning: it has no {MODEL}")
    saved = read_saved(path / CONFIG)
    run = saved_config(saved.model, str(path / CONFIG))
    classifier = partial(Classifier, classes=len(saved.classes), pool=saved.pool)
    shapes = build_from(run.architecture, run.model, "meta", objective=saved.objective)
    check_tensors(model_tensors(classifier(shapes)), header(path / MODEL), str(path / MODEL))
    body = build_from(run.architecture, run.model, pick_device(device), objective=saved.objective)
    model = classifier(body)
    load_weights(path / MODEL, model)
    check_finite(model.state_dict(), str(path / MODEL))
    tokenizer = load_tokenizer(path / TOKENIZER, path)
    return TextClassifier(model.eval(), tokenizer, saved.classes, saved.length)


@dataclass(frozen=True)
class Saved:
    """What config.json of a folder says to build its classifier again."""

    model: dict[str, Any]
    objective: Objective
    classes: list[str]
    pool: Pool
    length: int


def read_saved(path: Path) -> Saved:
    """That part of a config.json; UserError if it is not a fine-tuning's."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not from a fine-tuning")
    kept = {field.name: found.get(field.name) for field in fields(Saved)}
    return from_dict(Saved, kept, f"{path}: ")
