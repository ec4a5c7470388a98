"""A batch: what a model sees and what it has to say, for every objective alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORED = -100
"""The target that counts for nothing."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to learn from or to score; every tensor has one entry a row in its first dimension."""

    inputs: Tensor
    """int64 [rows, time]"""
    targets: Tensor
    """int64 [rows, time]; IGNORED where nothing is to be said"""
    source: Tensor | None = None
    """int64 [rows, source time], for an encoder–decoder: what the targets are made from"""
    source_mask: Tensor | None = None
    """bool [rows, source time], true for real tokens; none: all are real"""
    mask: Tensor | None = None
    """bool [rows, 1, 1, time] or [rows, 1, time, time], true where an input may be looked at; none:
    the model's own rule (a decoder looks back, an encoder at everything)"""
    documents: Tensor | None = None
    """int64 [rows, time], a number for each document of a row; an input looks at those of its own
    alone; none: at all of the row's"""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def scored(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())

    def keywords(self) -> dict[str, Any]:
        """What the model needs beside inputs and targets, under the names of its arguments."""
        names = ("source", "source_mask", "mask", "documents")
        found = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def split(self, rows: int) -> Iterator[Batch]:
        """The batch in parts of `rows` rows, the last perhaps smaller."""
        for first in range(0, len(self), rows):
            yield self.take(first, first + rows)

    def take(self, first: int, end: int) -> Batch:
        """The rows from `first` to before `end`."""
        return Batch(**{name: t[first:end] for name, t in self._tensors().items()})

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return Batch(**{name: t.to(device) for name, t in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "targets": self.targets} | self.keywords()
