"""What is measured: arms of one size, each a recipe with some keys set.

An arm is written NAME or NAME:KEY=VALUE,…: `ngpt`, `ngpt:train.compile=true`,
`quickstart/normformer`, `my.toml`. A short name stands for the anGPT paper's recipe of 0.5B. The
key `kernels` (auto, off, require) is the kernels' mode while the arm has its turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import torch

from unitsphere.errors import UserError
from unitsphere.kernels.registry import Mode
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.recipes import load_recipe

RECIPES = {
    "gpt-plus": "angpt2025/gpt-plus-0.5b",
    "ngpt": "angpt2025/ngpt-0.5b",
    "angpt": "angpt2025/angpt-0.5b",
    "gpt": "ngpt2024/gpt-0.5b",
    "normformer": "normformer2021/normformer-355m",
}
STEPS = 100_000
"""Length of the pretended run: the learning rate hardly changes during a bench."""


@dataclass(frozen=True)
class Sizes:
    """The size that all arms share, and how they compute. `micro_batch` none: the whole batch."""

    d_model: int
    n_layers: int
    n_heads: int
    context: int
    tokens: int
    vocab_size: int
    micro_batch: int | None
    compile: bool
    precision: str = "auto"
    device: str = "auto"


ON_CPU = Sizes(
    d_model=256,
    n_layers=4,
    n_heads=4,
    context=512,
    tokens=4096,
    vocab_size=2048,  # as large a share of the work as V = 50304 is of the 0.5B model's
    micro_batch=None,
    compile=False,
)
ON_GPU = Sizes(
    d_model=1024,
    n_layers=24,
    n_heads=16,
    context=4096,
    tokens=65536,
    vocab_size=50304,
    micro_batch=4,
    compile=True,
)


def sizes_for(device: torch.device, changes: Mapping[str, Any]) -> Sizes:
    """The device's default size with the `changes` that are not None.

    Raises UserError for sizes that do not go together.
    """
    start = replace(ON_GPU if device.type == "cuda" else ON_CPU, device=str(device))
    sizes = replace(start, **{key: value for key, value in changes.items() if value is not None})
    for key in ("d_model", "n_layers", "n_heads", "context", "tokens", "vocab_size"):
        if getattr(sizes, key) < 1:
            option = key.removeprefix("n_").removesuffix("_size")
            raise UserError(f"--{option} must be at least 1: {getattr(sizes, key)}")
    if sizes.tokens % sizes.context:
        raise UserError(f"--tokens {sizes.tokens} is not a multiple of --context {sizes.context}")
    return sizes


def arm_config(arm: str, sizes: Sizes) -> RunConfig:
    """The run config of an arm at that size; a `UserError` for an unknown arm."""
    name, changes = read_arm(arm)
    recipe = load_recipe(RECIPES.get(name, name))
    shared = {
        "model.d_model": sizes.d_model,
        "model.n_layers": sizes.n_layers,
        "model.n_heads": sizes.n_heads,
        "model.d_ff": None,
        "model.vocab_size": sizes.vocab_size,
        "data.context": sizes.context,
        "train.steps": STEPS,
        "train.batch_tokens": sizes.tokens,
        "train.micro_batch": sizes.micro_batch,
        "train.precision": sizes.precision,
        "train.compile": sizes.compile,
        "train.device": sizes.device,
    }
    changes.pop("kernels", None)
    return with_overrides(recipe, shared | changes)


def arm_kernels(arm: str) -> Mode:
    """The kernels' mode of an arm; a `UserError` for an unknown one."""
    _, changes = read_arm(arm)
    name, modes = str(changes.get("kernels", "auto")), get_args(Mode)
    if name not in modes:
        raise UserError(f"kernels={name} of an arm is not a mode: use {', '.join(modes)}")
    return cast(Mode, name)


def read_arm(arm: str) -> tuple[str, dict[str, Any]]:
    """An arm's recipe and its changes."""
    name, _, changes = arm.partition(":")
    return name, dict(read_change(arm, change) for change in changes.split(",") if change)


def read_change(arm: str, change: str) -> tuple[str, Any]:
    """The key and the value, read as JSON where it is (true, 2, 0.5, null), else as a word."""
    key, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"'{change}' of the arm '{arm}' is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def check_names(arms: Sequence[str]) -> None:
    """Raise UserError unless there are arms, each only once."""
    if not arms:
        raise UserError("--arms needs an arm, such as gpt-plus")
    twice = [arm for arm in arms if arms.count(arm) > 1]
    if twice:
        raise UserError(f"the arm {twice[0]} is given twice: the first arm runs twice anyway")
