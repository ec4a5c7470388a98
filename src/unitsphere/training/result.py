"""What a run says of itself: a headline when it begins, a result when it is done."""

import math
from dataclasses import dataclass
from pathlib import Path

from unitsphere.training.checkpoint import State
from unitsphere.training.log import read_metrics
from unitsphere.training.loop import Job
from unitsphere.training.schedule import decay_end, warmup_steps


@dataclass(frozen=True)
class Result:
    """How a run ended: its last record, and whether this call trained at all.

    val_loss is NaN for a run that ended when it diverged. val_bits_per_byte is None where the
    objective has none, val_accuracy where it is not measured.
    """

    out: Path
    step: int
    tokens: int
    seconds: float
    loss: float
    val_loss: float
    val_bits_per_byte: float | None
    val_accuracy: float | None
    trained: bool

    def validation(self) -> str:
        """The last validation in a few words; a run that ended when it diverged has none."""
        if math.isnan(self.val_loss):
            return "diverged"
        parts = [f"validation loss {self.val_loss:.4f}"]
        if self.val_bits_per_byte is not None:
            parts.append(f"{self.val_bits_per_byte:.4f} bits/byte")
        if self.val_accuracy is not None:
            parts.append(f"{self.val_accuracy:.1%} of the masked tokens right")
        return ", ".join(parts)


def headline(job: Job, out: Path, state: State, recipe: str) -> str:
    """What is about to be trained, in one line."""
    count = sum(parameter.numel() for parameter in job.model.parameters())
    train = job.config.train
    start = f", from step {state.step} on" if state.step else ""
    line = (
        f"{recipe or job.config.architecture}: {count:,} parameters, {train.steps} steps of "
        f"{train.batch_tokens:,} tokens{start}, {job.precision} on {job.model.device}, in {out}"
    )
    warmup = warmup_steps(job.config.schedule, train.steps)
    end = decay_end(job.config.schedule, train.steps)
    if warmup > end:
        over = "the run" if end == train.steps else f"the {end} steps of schedule.end"
        line += f"; the warm-up of {warmup} steps is longer than {over}: set schedule.warmup"
    if job.precision == "bf16-storage":
        line += "; weights stored in bf16 lose small updates: not recommended"
    return line


def result(out: Path, trained: bool) -> Result:
    """The result of a finished run from its last record."""
    last = read_metrics(out)[-1]
    return Result(
        out=out,
        step=last["step"],
        tokens=last["tokens"],
        seconds=last["time"],
        loss=last.get("loss", math.nan),  # not finite, and left out
        val_loss=last.get("val_loss", math.nan),  # it diverged, and was not validated
        val_bits_per_byte=last.get("val_bits_per_byte"),
        val_accuracy=last.get("val_accuracy"),
        trained=trained,
    )
