"""torch.compile for a run: block by block, so that all layers share one graph."""

import os
from pathlib import Path

import torch

from unitsphere.models.trunk import Transformer

CACHE = "TORCHINDUCTOR_CACHE_DIR"


def compiles(wanted: bool | None, device: torch.device) -> bool:
    """Whether a run compiles: as it is told, or else on a GPU."""
    return device.type == "cuda" if wanted is None else wanted


def compile_blocks(model: Transformer) -> None:
    """Compile every block in place, in one graph each; names of parameters stay as they are.

    Whole blocks or an error: a graph that breaks would be slow in silence. It is the forward method
    that is compiled, so that what FSDP does before and after it stays outside of the graph.
    """
    for block in [*model.blocks, *(model.encoder or [])]:
        block.forward = torch.compile(block.forward, fullgraph=True)


def keep_cache(run: Path) -> None:
    """Keep what is compiled in the run folder, so that a run that goes on does not wait again.

    A cache folder that the environment names stays.
    """
    os.environ.setdefault(CACHE, str((run / "compiled").absolute()))
