"""A text of a few kilobytes, and configs that train on it in a fraction of a second."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_config import tiny_config

from unitsphere.models.trunk import Objective
from unitsphere.training.config import RunConfig
from unitsphere.training.optim import OptimConfig

CONTEXT, ROWS = 32, 4


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSONL with 40 documents, a few of them not ASCII."""
    path = tmp_path_factory.mktemp("source") / "text.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(40):
            text = f"Document {number}: größer als {number * number}. " * (1 + number % 5)
            file.write(json.dumps({"text": text}) + "\n")
    return path


Tiny = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def tiny(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """`tiny("ngpt", "mlm", steps=8, lr=…)`: a config of two layers of width 32 on bytes."""
    cache = tmp_path_factory.mktemp("cache")

    def make(
        architecture: str = "gpt", objective: Objective = "clm", lr: float = 1e-2, **train: Any
    ) -> RunConfig:
        settings = {
            "steps": 8,
            "save_every": 3,
            "eval_every": 4,
            "log_every": 1,
            "batch_tokens": CONTEXT * ROWS,
        }
        return tiny_config(
            source,
            cache,
            architecture,
            objective,
            context=CONTEXT,
            optim=OptimConfig(lr=lr),
            **(settings | train),
        )

    return make
