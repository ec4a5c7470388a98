"""BLEU of a corpus, by sacrebleu (Post 2018, arXiv 1804.08771), so that scores can be compared."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from unitsphere.errors import UserError


@dataclass(frozen=True)
class Bleu:
    """The score from 0 to 100, and sacrebleu's signature, which says how it was computed."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """BLEU of hypotheses with one reference each, texts as they are (sacrebleu tokenizes by "13a").

    Raises UserError if sacrebleu is not installed, ValueError unless there are as many of both.
    """
    check_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))


def check_sacrebleu() -> None:
    """Raise a `UserError` unless sacrebleu is there: to be called before a long decoding."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise UserError(
            "BLEU needs sacrebleu: pip install 'unitsphere[translate]', or leave it out (--beam 0)"
        )
