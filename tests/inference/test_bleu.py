"""BLEU is sacrebleu's, with its signature; without sacrebleu there is one line."""

import math
import sys

import pytest

from unitsphere.errors import UserError
from unitsphere.inference.translate import bleu

pytest.importorskip("sacrebleu")
REFERENCES = ["the cat sat on the mat .", "there is a dog in the big house ."]


def test_the_references_themselves_score_100():
    found = bleu(REFERENCES, REFERENCES)
    assert found.score == pytest.approx(100)
    assert all(part in found.signature for part in ("nrefs:1", "tok:13a", "smooth:exp", "version:"))


def test_the_formula():
    # One word of seven wrong: precisions 6/7, 4/6, 2/5 and 0/4, which is smoothed to half a match
    # ("exp" in the signature); no brevity penalty.
    found = bleu(["the cat sat upon the mat ."], REFERENCES[:1])
    expected = 100 * math.prod([6 / 7, 4 / 6, 2 / 5, 0.5 / 4]) ** 0.25
    assert found.score == pytest.approx(expected)


def test_a_short_hypothesis_pays_for_it():
    found = bleu(["the cat sat on"], REFERENCES[:1])
    assert found.score == pytest.approx(100 * math.exp(1 - 7 / 4))


def test_as_many_hypotheses_as_references():
    for hypotheses in ([], ["one"]):
        with pytest.raises(ValueError, match="references"):
            bleu(hypotheses, REFERENCES)


def test_without_sacrebleu_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"pip install 'unitsphere\[translate\]'"):
        bleu(REFERENCES, REFERENCES)
