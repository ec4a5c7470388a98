"""A fine-tuned classifier back from its folder, for new texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unitsphere.config import read_json
from unitsphere.data.classified import encode_examples
from unitsphere.data.labelled import Example
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.models.classifier import Classifier
from unitsphere.models.registry import build_from
from unitsphere.training.device import pick_device
from unitsphere.training.finetune_fit import class_logits
from unitsphere.training.finetune_folder import CONFIG, MODEL, TOKENIZER, load_weights
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

    Raises UserError if it is none, or not finished.
    """
    path = Path(path)
    if not (path / MODEL).is_file():
        raise UserError(f"{path} holds no finished fine-tuning: it has no {MODEL}")
    saved = read_json(path / CONFIG)
    run = saved_config(saved["model"], str(path / CONFIG))
    body = build_from(
        run.architecture, run.model, pick_device(device), objective=saved["objective"]
    )
    model = Classifier(body, len(saved["classes"]), saved["pool"])
    load_weights(path / MODEL, model)
    tokenizer = load_tokenizer(path / TOKENIZER)
    return TextClassifier(model.eval(), tokenizer, saved["classes"], saved["length"])
