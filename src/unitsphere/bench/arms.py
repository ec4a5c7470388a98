"""What is measured: arms of one size, a training step of one, and the gate before it is timed.

An arm is a recipe with some keys set, written NAME or NAME:KEY=VALUE,…: `ngpt`,
`ngpt:train.compile=true`, `quickstart/normformer`, `my.toml`. A short name stands for the anGPT
paper's recipe of 0.5B. The key `kernels` (auto, off, require) is the kernels' mode while the arm
has its turn.

A step is the training code's own, on random tokens. The gate compares the loss and the norm of the
gradient of an arm's first steps with those of its reference: the same run in fp32, without
torch.compile and without kernels. On a GPU the reference takes one sequence at a time, because fp32
needs more memory, and beside arms of less precision it multiplies in TF32, which takes a fraction
of the time. An arm that differs computes something else, and its times would mean nothing.
"""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.errors import UserError
from unitsphere.kernels.registry import Mode, using_kernels
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device, pick_precision
from unitsphere.training.plan import Trainer, build_trainer
from unitsphere.training.recipes import load_recipe
from unitsphere.training.step import update

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
    micro_batch=8,  # with 4 the kernels of an H200 end before Python has started the next ones
    compile=True,
)


def sizes_for(device: torch.device, changes: Mapping[str, Any]) -> Sizes:
    """The device's default size with the `changes` that are not None.

    Raises UserError for sizes that do not go together.
    """
    start = replace(ON_GPU if device.type == "cuda" else ON_CPU, device=str(device))
    sizes = replace(start, **{key: value for key, value in changes.items() if value is not None})
    if sizes.tokens % sizes.context:
        raise UserError(f"--tokens {sizes.tokens} is not a multiple of --context {sizes.context}")
    return sizes


def arm_config(arm: str, sizes: Sizes) -> RunConfig:
    """The run config of an arm at that size.

    Raises UserError for an unknown arm, for one whose steps have other tokens (times of different
    work have no ratio), and for one that learns pairs of texts.
    """
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
    config = with_overrides(recipe, shared | changes)
    if config.train.batch_tokens != sizes.tokens:
        raise UserError(
            f"the arm {arm} has {config.train.batch_tokens} tokens per step, the others have "
            f"{sizes.tokens}: leave out train.batch_tokens and give --tokens for all"
        )
    if config.data.context < 1 or sizes.tokens % config.data.context:
        raise UserError(
            f"the arm {arm} has a context of {config.data.context}, of which {sizes.tokens} tokens "
            "per step is not a multiple: change data.context or give --tokens"
        )
    if config.objective == "seq2seq":
        raise UserError(f"the arm {arm} has the objective seq2seq, and a bench has no pairs")
    return config


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


POOL = 4
"""Batches that are drawn in advance and used in turn: drawing is not part of a step."""
GATE_STEPS = 2
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp8": 5e-2, "bf16-storage": 5e-2}
"""Precision -> the largest relative difference of a step's figures from the reference's."""
Figures = list[tuple[float, float]]
"""Loss in nats and norm of the gradient of each step."""


class RandomBatches:
    """Uniform random tokens, never only zeros: a GPU multiplies zeros faster.

    With `apart` token 0 begins a document, so that one has as many tokens as there are entries in
    the vocabulary, on average.
    """

    def __init__(self, vocabulary: int, context: int, rows: int, apart: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (POOL, rows, context + 1)
        self.windows = torch.randint(vocabulary, shape, generator=generator)
        self.apart = apart

    def batch(self, step: int) -> Batch:
        """Inputs and targets of a step, int64 [rows, context] each."""
        return self.rows(step, 0, self.windows.shape[1])

    def rows(self, step: int, first: int, count: int) -> Batch:
        """`count` rows of them from `first` on."""
        windows = self.windows[step % POOL, first : first + count]
        inputs = windows[:, :-1].contiguous()
        documents = (inputs == 0).cumsum(1) if self.apart else None
        return Batch(inputs, windows[:, 1:].contiguous(), documents=documents)


class Stepper:
    """A run of an arm, one step at a time, as `unitsphere train` makes them."""

    def __init__(self, config: RunConfig, kernels: Mode = "auto") -> None:
        data = config.data
        batches = RandomBatches(
            config.model.vocab_size, data.context, config.rows, apart=data.document_mask
        )
        self.trainer: Trainer = build_trainer(config, batches)
        self.kernels: Mode = kernels
        self.done = 0

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.trainer.model.device

    def step(self) -> tuple[Tensor, Tensor]:
        """One update; its loss and the norm of its gradient."""
        with using_kernels(self.kernels):
            loss, norm, _ = update(self.trainer, self.done)
        self.done += 1
        return loss, norm


def first_steps(stepper: Stepper) -> Figures:
    """What an arm's first steps show."""
    steps = (stepper.step() for _ in range(GATE_STEPS))
    return [(loss.item(), norm.item()) for loss, norm in steps]


def reference_config(config: RunConfig) -> RunConfig:
    """The config of an arm's reference."""
    changes = {"train.precision": "fp32", "train.compile": False}
    if pick_device(config.train.device).type == "cuda":
        changes["train.micro_batch"] = 1
    return with_overrides(config, changes)


@functools.cache  # a copy of an arm and an arm without kernels have the same reference
def reference_steps(config: RunConfig) -> Figures:
    """The first steps of a reference's config, without kernels."""
    return first_steps(Stepper(config, "off"))


@contextmanager
def fp32_products(precision: str) -> Iterator[None]:
    """Multiply fp32 matrices in "high" (TF32, where the device has it) or "highest" precision."""
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)


def check_arm(arm: str, config: RunConfig, kernels: Mode, found: Figures) -> float | None:
    """The largest difference of the first steps' figures from the reference's, divided by these.

    None if the arm is its own reference. Raises UserError for an arm beyond the tolerance.
    """
    device = pick_device(config.train.device)
    precision = pick_precision(config.train.precision, device)
    reference = reference_config(config)
    plain = kernels == "off" or (kernels == "auto" and device.type == "cpu")
    if plain and reference == with_overrides(config, {"train.precision": precision}):
        return None
    rounded = device.type == "cuda" and precision != "fp32"
    with fp32_products("high" if rounded else "highest"):
        wanted = reference_steps(reference)
    return compare_steps(arm, found, wanted, TOLERANCE[precision])


def compare_steps(arm: str, found: Figures, wanted: Figures, tolerance: float) -> float:
    """The largest relative difference; a `UserError` if one is beyond the tolerance."""
    off = 0.0
    for step, figures in enumerate(zip(found, wanted, strict=True), 1):
        for name, own, other in zip(("loss", "gradient's norm"), *figures, strict=True):
            difference = abs(own - other) / abs(other)
            if not difference <= tolerance or not math.isfinite(own):
                raise UserError(
                    f"the arm {arm} computes something else: at step {step} its {name} is "
                    f"{own:.6g}, in fp32 without compiling {other:.6g}; its times would mean "
                    "nothing"
                )
            off = max(off, difference)
    return off
