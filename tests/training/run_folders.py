"""What tests read back from run folders."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from unitsphere.training.log import read_metrics


def weights(out: Path) -> dict[str, Tensor]:
    """All tensors of a run's newest checkpoint, the optimizer's too."""
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    return {k: v for path in newest.glob("*.safetensors") for k, v in load_file(path).items()}


def figures(out: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on the clock."""
    clock = ("time", "tokens_per_second", "slowest_rank", "slowest_ratio")
    return [{k: v for k, v in r.items() if k not in clock} for r in read_metrics(out)]
