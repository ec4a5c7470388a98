"""Recipes so small that a run of them takes a second, and a text to train on."""

import json
from typing import Any

TEXT = "The cat sat on the mat, and that was that.\n"
MODEL = {"d_model": 32, "n_layers": 1, "n_heads": 2}
DATA = {"source": "text.txt", "tokenizer": "bytes", "context": 16, "cache": "cache"}
TRAIN = {"steps": 2, "batch_tokens": 128, "device": "cpu", "precision": "fp32"}


def tiny_recipe(
    architecture: str = "ngpt",
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    lr: float | None = None,
    objective: str | None = None,
    **train: Any,
) -> str:
    """The text of a recipe in TOML: the settings above, with what is given in their place."""
    top = {"architecture": architecture} | ({"objective": objective} if objective else {})
    tables = {
        "model": MODEL | (model or {}),
        "data": DATA | (data or {}),
        **({} if lr is None else {"optim": {"lr": lr}}),
        "train": TRAIN | train,
    }
    lines = toml(top) + [line for name in tables for line in (f"[{name}]", *toml(tables[name]))]
    return "\n".join(lines) + "\n"


def toml(table: dict[str, Any]) -> list[str]:
    """The lines of a flat table; JSON's values are TOML's."""
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]
