"""A fine-tuned classifier: its weights on the disk, and back from its folder for new texts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unitsphere.config import from_dict, read_json
from unitsphere.data.labelled import Example, encode_examples, padded_rows
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.files import check_given, write_tensors
from unitsphere.models.classifier import Classifier, Pool
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Objective
from unitsphere.training.checkpoint.tensors import (
    check_finite,
    check_tensors,
    meta_tensors,
    model_tensors,
)
from unitsphere.training.device import pick_device
from unitsphere.training.recipes import saved_config

CONFIG, MODEL, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def save_weights(path: Path, model: Classifier, tag: str) -> None:
    """Write every tensor once, and what the file holds; it is complete or absent."""
    write_tensors(path, model_tensors(model), {"trained": tag})


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of weights, opened for reading parts; UserError if it cannot be read."""
    try:
        with safe_open(check_given(path, path.parent), framework="pt") as file:
            yield file
    except (SafetensorError, MemoryError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def weights_of(path: Path) -> str | None:
    """What a file of weights holds, or None if there is no file."""
    if not path.is_file():
        return None
    with opened(path) as file:
        return (file.metadata() or {}).get("trained")


def header(path: Path) -> dict[str, Tensor]:
    """Name -> an empty tensor of the shape and dtype that a file of weights holds of it."""
    with opened(path) as file:
        return meta_tensors(file)


def load_weights(path: Path, model: Classifier) -> None:
    """Fill the model in place; UserError unless the file holds its tensors."""
    tensors = model_tensors(model)
    check_tensors(tensors, header(path), str(path))
    with torch.no_grad(), opened(path) as file:
        for name, tensor in tensors.items():
            tensor.copy_(file.get_tensor(name))


@torch.no_grad()
def class_logits(
    classifier: Classifier, tokens: Sequence[np.ndarray], separator: int, rows: int = 64
) -> Tensor:
    """Logits [examples, classes] on the CPU, in fp32; sequences of like length go together."""
    classifier.eval()
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    found = torch.empty(len(tokens), classifier.head.weight.shape[0])
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        batch = padded_rows([tokens[i] for i in indices], separator)
        found[indices] = classifier(*(part.to(classifier.device) for part in batch)).float().cpu()
    return found


@dataclass(frozen=True)
class TextClassifier:
    """A fine-tuned classifier for new texts; `pairs`: of pairs of texts.

    Its methods raise UserError for a single string, for second texts that are missing or were not
    trained on, and for other than one of them for each text.
    """

    model: Classifier
    tokenizer: Tokenizer
    classes: list[str]
    length: int
    pairs: bool = False

    def probabilities(self, texts: Sequence[str], texts2: Sequence[str] | None = None) -> Tensor:
        """[texts, classes], each row sums to 1; `texts2` are the second texts of pairs."""
        self._check(texts, texts2)
        seconds = [None] * len(texts) if texts2 is None else texts2
        examples = [Example(a, b, "", 0) for a, b in zip(texts, seconds, strict=True)]
        tokens = encode_examples(examples, self.tokenizer, self.length).tokens
        return class_logits(self.model, tokens, self.tokenizer.separator).softmax(-1)

    def predict(self, texts: Sequence[str], texts2: Sequence[str] | None = None) -> list[str]:
        """The likeliest class of each text, or pair of texts, by its name."""
        return [self.classes[i] for i in self.probabilities(texts, texts2).argmax(-1).tolist()]

    def _check(self, texts: Sequence[str], texts2: Sequence[str] | None) -> None:
        """Raise UserError unless these are what the classifier was trained on."""
        if isinstance(texts, str) or isinstance(texts2, str):  # else each character is a text
            raise UserError("give a list of texts, not a single string")
        if self.pairs and texts2 is None:
            raise UserError(
                "this classifier was trained on pairs of texts: give the second texts too, as "
                "predict(texts, second_texts)"
            )
        if not self.pairs and texts2 is not None:
            raise UserError(
                "this classifier was trained on single texts: leave out the second texts"
            )
        if texts2 is not None and len(texts2) != len(texts):
            raise UserError(
                f"{len(texts)} texts and {len(texts2)} second texts: give one for each text"
            )


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
    return TextClassifier(model.eval(), tokenizer, saved.classes, saved.length, saved.pairs)


@dataclass(frozen=True)
class Saved:
    """What config.json of a folder says to build its classifier again."""

    model: dict[str, Any]
    objective: Objective
    classes: list[str]
    pool: Pool
    length: int
    fields: Any

    @property
    def pairs(self) -> bool:
        """Whether the examples had a second text."""
        return isinstance(self.fields, Mapping) and bool(self.fields.get("text2"))


def read_saved(path: Path) -> Saved:
    """That part of a config.json; UserError if it is not a fine-tuning's."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not from a fine-tuning")
    kept = {field.name: found.get(field.name) for field in fields(Saved)}
    return from_dict(Saved, kept, f"{path}: ")
