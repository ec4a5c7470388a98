"""A masked language model at work: a text with its hidden tokens filled in."""

import torch

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.models.trunk import Transformer

SHOWN = 100
"""Tokens of a text that are shown."""


@torch.no_grad()
def fill_text(model: Transformer, tokenizer: Tokenizer, example: Batch) -> str:
    """The first row of a masked batch as text, each token that was asked for in brackets.

    `[is]` was guessed right; of `[is|was]` the first is the model's likeliest guess, the second
    what stood there.
    """
    first = next(example.split(1)).to(model.device)
    logits = model(first.inputs, **first.keywords())
    guesses = logits[0, :, : tokenizer.vocab_size].argmax(-1).tolist()
    parts: list[str] = []
    plain: list[int] = []
    rows = zip(first.inputs[0].tolist(), first.targets[0].tolist(), guesses, strict=True)
    for _, (shown, asked, guess) in zip(range(SHOWN), rows, strict=False):
        if asked == IGNORED:
            plain.append(shown)
            continue
        said = tokenizer.decode([guess])
        right = "" if guess == asked else f"|{tokenizer.decode([asked])}"
        parts += [tokenizer.decode(plain), f"[{said}{right}]"]
        plain = []
    return "".join([*parts, tokenizer.decode(plain)])
