"""What the peers share: the tokens that all contenders read, in batches, and the precision."""

import json
from pathlib import Path

import numpy as np
import torch


def vocabulary(tokens: Path) -> int:
    """How many tokens there are."""
    return json.loads((tokens / "meta.json").read_text())["vocab_size"]


def windows(path: Path, context: int) -> torch.Tensor:
    """A stream of uint16 tokens as rows of context + 1, each row's last the next row's first."""
    tokens = torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))
    return tokens.unfold(0, context + 1, context)


def pairs(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of rows."""
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def fast_bf16() -> bool:
    """Whether the processor has bf16 instructions: ours computes in bf16 by itself there."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
