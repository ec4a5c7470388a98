"""Shards made of an array."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from unitsphere.data import Shards


class Stream(SimpleNamespace):
    """What batches need of shards."""

    def __getitem__(self, window: slice) -> np.ndarray:
        return self.tokens[window]


def stream(tokens: np.ndarray, split: str = "train") -> Shards:
    """A split that holds `tokens`."""
    fields: dict[str, Any] = {"tokens": tokens, "n_tokens": len(tokens), "split": split}
    return cast(Shards, Stream(folder="folder", **fields))


def counting(n_tokens: int, split: str = "train") -> Shards:
    """A split whose token number i is i."""
    return stream(np.arange(n_tokens, dtype=np.uint16), split)
