"""A run's config so small that a step takes milliseconds."""

import dataclasses
from pathlib import Path
from typing import Any

from unitsphere.data.config import DataConfig
from unitsphere.models.trunk import Objective
from unitsphere.training.config import RunConfig, TrainConfig, run_config_type
from unitsphere.training.optim import OptimConfig

MODEL = {"d_model": 32, "n_layers": 2, "n_heads": 2}


def tiny_config(
    source: Path,
    cache: Path,
    architecture: str = "ngpt",
    objective: Objective = "clm",
    model: dict[str, Any] | None = None,
    context: int = 32,
    optim: OptimConfig | None = None,
    **train: Any,
) -> RunConfig:
    """A config over the bytes of a text, on the CPU in fp32; `model` replaces values of MODEL."""
    kind = run_config_type(architecture)
    return kind(
        architecture=architecture,
        objective=objective,
        model=dataclasses.replace(kind().model, **(MODEL | (model or {}))),
        data=DataConfig(source=str(source), tokenizer="bytes", context=context, cache=str(cache)),
        optim=optim or OptimConfig(),
        train=TrainConfig(**({"precision": "fp32", "device": "cpu"} | train)),
    )
