"""A batch in parts is the batch."""

import pytest
import torch

from unitsphere.data import IGNORED, Batch


def batch(rows: int = 5) -> Batch:
    tokens = torch.arange(rows * 4).view(rows, 4)
    targets = tokens.clone()
    targets[1:, 0] = IGNORED
    source = torch.arange(rows * 3).view(rows, 3)
    mask, documents = tokens[:, None, None] > 2, (tokens % 3 == 0).cumsum(1)
    return Batch(tokens, targets, source, source % 2 == 0, mask, documents)


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_the_parts_hold_every_row_of_every_tensor_once(rows):
    whole = batch()
    parts = list(whole.split(rows))
    assert sum(len(part) for part in parts) == len(whole) == 5
    assert max(len(part) for part in parts) == min(rows, 5)
    assert sum(part.scored for part in parts) == whole.scored == 16
    for name in ("inputs", "targets", "source", "source_mask", "mask", "documents"):
        together = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(together, getattr(whole, name))


def test_the_model_gets_what_there_is():
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    assert Batch(tokens, tokens).keywords() == {}
    assert set(batch().keywords()) == {"source", "source_mask", "mask", "documents"}


def test_every_tensor_moves():
    moved = batch().to("meta")
    assert {t.device.type for t in (moved.inputs, moved.targets, *moved.keywords().values())} == {
        "meta"
    }
