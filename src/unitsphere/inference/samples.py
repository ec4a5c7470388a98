"""What a model in training writes into samples.txt: a text, filled masks, or targets."""

import torch

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.inference.generate import generate_text
from unitsphere.inference.translate import Search
from unitsphere.models.trunk import Transformer

TOKENS = 200
"""Most tokens of a new document."""
SHOWN = 100
"""Most tokens of a text that are shown."""


def write_sample(model: Transformer, tokenizer: Tokenizer, example: Batch) -> str:
    """A text by the model: a new document, a row of `example` with its masks filled in, or the
    targets that it writes for the sources of `example`.

    The same for the same weights; no generator of the run is used. Compiled blocks run as they are
    written: a sample is short, and the compiler takes seconds for each new form of the inputs.
    """
    with torch.compiler.set_stance("force_eager"):
        if model.objective == "mlm":
            return fill_text(model, tokenizer, example)
        if model.objective == "seq2seq":
            return show_targets(model, tokenizer, example)
        return sample_text(model, tokenizer, TOKENS)


def sample_text(model: Transformer, tokenizer: Tokenizer, max_tokens: int = 200) -> str:
    """A document from its start at temperature 0.8, the same for the same weights.

    It has its own generator, so sampling during training does not change the run.
    """
    return generate_text(model, tokenizer, [""], max_tokens, temperature=0.8)[0].text


@torch.no_grad()
def show_targets(model: Transformer, tokenizer: Tokenizer, example: Batch) -> str:
    """The sources of a batch, the model's targets, and the right ones."""
    assert example.source is not None
    assert example.source_mask is not None
    sources = [
        row[: int(real.sum()) - 1].tolist()
        for row, real in zip(example.source, example.source_mask, strict=True)
    ]
    references = [row[row != IGNORED].tolist() for row in example.targets]
    longest = example.targets.shape[1]
    longest = min(longest, (model.max_length or longest + 1) - 1)  # the separator is before them
    found = Search(max_tokens=longest)(model, tokenizer, sources)
    lines = []
    for source, hypothesis, reference in zip(sources, found, references, strict=True):
        lines += [
            f"source:     {tokenizer.decode(source)}",
            f"hypothesis: {tokenizer.decode(hypothesis.tokens)}",
            f"reference:  {tokenizer.decode(reference)}",
            "",
        ]
    return "\n".join(lines[:-1])


@torch.no_grad()
def fill_text(model: Transformer, tokenizer: Tokenizer, example: Batch) -> str:
    """The first row of a masked batch as text, with the masked tokens in brackets.

    `[is]` was guessed right; of `[is|was]` the first is the model's guess, the second the truth.
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
