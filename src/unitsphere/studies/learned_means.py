"""What learned scales came to: nGPT's Mean(s) (arXiv 2410.01131, Tables 4 and 5)."""

import statistics
from collections.abc import Iterable
from pathlib import Path

from unitsphere.inspection.scales import EIGEN, effective
from unitsphere.models.parts import Scale
from unitsphere.training.load import load_run


def learned_means(runs: Iterable[Path]) -> dict[str, float]:
    """Scale ("s_qk") -> its mean over elements, layers and runs; of eigen learning rates |α|'s."""
    every = [means_of(run) for run in runs]
    names = every[0] if every else {}
    return {name: statistics.mean(one[name] for one in every) for name in names}


def means_of(run: Path) -> dict[str, float]:
    """Of one run, by the values that the forward pass uses after its last step."""
    model = load_run(run, device="cpu").model
    found: dict[str, list[float]] = {}
    for place, module in model.named_modules():
        if isinstance(module, Scale):
            name, value = place.rpartition(".")[2], effective(module)
            value = value.abs() if name in EIGEN else value
            found.setdefault(name, []).append(value.mean().item())
    return {name: statistics.mean(values) for name, values in found.items()}
