"""Samples of a model in training: they compile nothing."""

import pytest
import torch
from torch._dynamo.utils import counters

from unitsphere.data.batch import Batch
from unitsphere.inference.samples import write_sample
from unitsphere.models.registry import build


class Bytes:
    """A tokenizer of 256 bytes."""

    vocab_size, separator = 256, 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_a_sample_of_compiled_blocks_compiles_nothing(objective):
    model = build("gpt", vocab_size=256, d_model=16, n_layers=2, n_heads=2, objective=objective)
    tokens = torch.arange(12).view(2, 6)
    example = Batch(tokens, tokens.clone())
    expected = write_sample(model, Bytes(), example)
    for block in model.blocks:
        block.forward = torch.compile(block.forward, fullgraph=True, backend="eager")
    before = counters["stats"]["unique_graphs"]
    assert write_sample(model, Bytes(), example) == expected
    assert counters["stats"]["unique_graphs"] == before
    model(tokens)
    assert counters["stats"]["unique_graphs"] > before


@pytest.mark.parametrize("objective", ["clm", "seq2seq"])
def test_a_sample_ends_where_the_learned_positions_end(objective):
    sizes = {"vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_positions": 6}
    sizes |= {"positions": "learned", "tied": False, "objective": objective}
    model = build("normformer", **sizes)
    tokens = torch.arange(12).view(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    write_sample(model, Bytes(), Batch(tokens, tokens + 1, source=tokens, source_mask=mask))
