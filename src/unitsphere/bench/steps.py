"""One training step of an arm, and the gate that an arm must pass before it is timed.

A step is the training code's own, on random tokens. The gate compares the loss and the norm of the
gradient of an arm's first steps with those of its reference: the same run in fp32, without
torch.compile and without kernels. On a GPU the reference takes one sequence at a time, because fp32
needs more memory, and beside arms of less precision it multiplies in TF32, which takes a fraction
of the time. An arm that differs computes something else, and its times would mean nothing.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.errors import UserError
from unitsphere.kernels.registry import Mode, using_kernels
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device, pick_precision
from unitsphere.training.plan import Trainer, build_trainer
from unitsphere.training.step import update

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
        rows = config.train.batch_tokens // config.data.context
        data = config.data
        batches = RandomBatches(
            config.model.vocab_size, data.context, rows, apart=data.document_mask
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
