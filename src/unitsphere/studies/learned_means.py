"""What learned scales came to: nGPT's Mean(s) (arXiv 2410.01131, Tables 4 and 5)."""

import statistics
from collections.abc import Iterable
from pathlib import Path

from unitsphere.inspection.weights import EIGEN, effective
from unitsphere.models.parts import Scale
from unitsphere.models.trunk import Transformer
from unitsphere.training.load import load_run

SIGNLESS = (*EIGEN, "s_qk")
"""Scales whose sign changes nothing: |α| is used, and q and k both have s_qk."""


def learned_means(runs: Iterable[Path]) -> dict[str, float]:
    """Scale ("s_qk") -> its mean over elements, layers and runs; of those in SIGNLESS of |s|."""
    every = [means_of(load_run(run, device="cpu").model) for run in runs]
    names = every[0] if every else {}
    return {name: statistics.mean(one[name] for one in every) for name in names}


def means_of(model: Transformer) -> dict[str, float]:
    """Of one model, by the values that its forward pass uses."""
    found: dict[str, list[float]] = {}
    for place, module in model.named_modules():
        if isinstance(module, Scale):
            name, value = place.rpartition(".")[2], effective(module)
            value = value.abs() if name in SIGNLESS else value
            found.setdefault(name, []).append(value.mean().item())
    return {name: statistics.mean(values) for name, values in found.items()}
