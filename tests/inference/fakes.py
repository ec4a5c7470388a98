"""A small encoder–decoder that is a table: any distribution after any prefix, drawn by a seed."""

import hashlib

import torch

from unitsphere.models.context import Memory


class FakeCache:
    """The tokens so far of each row."""

    def __init__(self) -> None:
        self.tokens: torch.Tensor | None = None

    def reorder(self, rows: torch.Tensor) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[rows]


class Table(torch.nn.Module):
    """Logits that depend on the source and on all tokens before, in no simple way."""

    device = torch.device("cpu")
    max_length = None

    def __init__(self, vocabulary: int, seed: int = 0, spread: float = 2.0) -> None:
        super().__init__()
        self.vocabulary, self.seed, self.spread = vocabulary, seed, spread
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def new_cache(self, batch: int, length: int) -> FakeCache:
        return FakeCache()

    def encode(self, source: torch.Tensor, mask: torch.Tensor) -> Memory:
        return Memory(torch.where(mask, source, -1), mask)

    def forward(self, tokens, cache, memory):
        cache.tokens = tokens if cache.tokens is None else torch.cat([cache.tokens, tokens], 1)
        rows = [
            self.logits([t for t in source.tolist() if t >= 0], prefix.tolist())
            for source, prefix in zip(memory.h, cache.tokens, strict=True)
        ]
        return torch.stack(rows)[:, None]

    def logits(self, source: list[int], prefix: list[int]) -> torch.Tensor:
        text = f"{self.seed} {source} {prefix}".encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        generator = torch.Generator().manual_seed(seed)
        return self.spread * torch.randn(self.vocabulary, generator=generator, dtype=torch.float64)
