"""What a model in training writes into samples.txt."""

from unitsphere.data.batch import Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.inference.fill import fill_text
from unitsphere.inference.generate import sample_text
from unitsphere.inference.targets import show_targets
from unitsphere.models.trunk import Transformer


def write_sample(model: Transformer, tokenizer: Tokenizer, example: Batch) -> str:
    """A text by the model: a document of its own, a row of `example` with its masks filled in, or
    the targets that it writes for the sources of `example`.

    The same for the same weights; no generator of the run is drawn from.
    """
    if model.objective == "mlm":
        return fill_text(model, tokenizer, example)
    if model.objective == "seq2seq":
        return show_targets(model, tokenizer, example)
    return sample_text(model, tokenizer)
