"""Texts in, targets out: in order, and cut where they are too long."""

import pytest
import torch
from fakes import Table

from unitsphere.data.batch import Batch
from unitsphere.data.documents import TextPair
from unitsphere.data.pairs import pair_batch
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference.samples import show_targets
from unitsphere.inference.translate import Answer, Search, answer, write_targets
from unitsphere.training.evaluate.pairs import text_pairs


class Echo(Table):
    """Writes its source, or its first `stop` bytes, with certainty."""

    def __init__(self, stop: int = 100) -> None:
        super().__init__(256)
        self.stop = stop

    def logits(self, source: list[int], prefix: list[int]) -> torch.Tensor:
        written = len(prefix) - 1
        token = source[written] if written < min(self.stop, len(source)) else 0
        return 50.0 * torch.eye(256, dtype=torch.float64)[token]


TEXTS = ["one", "größe", "a longer text", "z"]
TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize("beam", [1, 3])
def test_each_text_has_its_target(beam):
    found = answer(Echo(), TOKENIZER, TEXTS, Search(40, beam), context=64)
    assert [one.text for one in found] == [one.prompt for one in found] == TEXTS
    sizes = [len(text.encode()) for text in TEXTS]
    assert [one.tokens for one in found] == sizes
    assert [one.prompt_tokens for one in found] == [size + 1 for size in sizes]
    assert all(one.stopped and not one.cut for one in found)
    assert found[0].log_probability == pytest.approx(0, abs=1e-6)


def test_a_source_is_cut_and_a_target_is_ended():
    found = answer(Echo(), TOKENIZER, ["abcdefgh"], Search(4), context=7)[0]
    assert found == Answer("abcdefgh", "abcd", 7, True, 4, False, found.log_probability)
    whole = answer(Echo(), TOKENIZER, ["abcdefgh"], Search(40), context=7)[0]
    assert (whole.text, whole.stopped) == ("abcdef", True)
    exact = answer(Echo(), TOKENIZER, ["abcdef"], Search(40), context=7)[0]
    assert (exact.prompt_tokens, exact.cut) == (7, False)


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_any_number_of_sources_is_written_in_order(rows):
    sources = ([*TOKENIZER.encode(text)] for text in TEXTS)
    found = list(write_targets(Echo(), TOKENIZER, sources, Search(40), 6, rows))
    assert found == ["one", "grö\N{REPLACEMENT CHARACTER}", "a lon", "z"]


def test_a_source_is_asked_for():
    for prompts in ([""], ["text", " "]):
        with pytest.raises(UserError, match="give a prompt"):
            answer(Echo(), TOKENIZER, prompts, Search(4), 8)


def test_samples_show_all_three():
    pairs = [TextPair("one", "eins"), TextPair("größe", "size")]
    batch: Batch = pair_batch(list(text_pairs(pairs, TOKENIZER)), 0)
    assert show_targets(Echo(stop=4), TOKENIZER, batch).splitlines() == [
        "source:     one",
        "hypothesis: one",
        "reference:  eins",
        "",
        "source:     größe",
        "hypothesis: grö",
        "reference:  size",
    ]
