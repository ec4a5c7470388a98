"""What a run prints: a headline when it begins, a result when it is done."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from unitsphere.data.prepare import lost_share
from unitsphere.errors import UserError
from unitsphere.training.checkpoint.store import State
from unitsphere.training.config import RunConfig
from unitsphere.training.log import duration, read_metrics
from unitsphere.training.optim.schedule import warmup_steps
from unitsphere.training.plan import Trainer


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
    val_text_lost: float | None = None

    def validation(self) -> str:
        """The last validation in a few words; a run that ended when it diverged has none."""
        if math.isnan(self.val_loss):
            return "diverged"
        parts = [f"validation loss {self.val_loss:.4f}"]
        if self.val_bits_per_byte is not None:
            parts.append(f"{self.val_bits_per_byte:.4f} bits/byte")
        if self.val_accuracy is not None:
            parts.append(f"{self.val_accuracy:.1%} of the masked tokens right")
        if self.val_text_lost is not None:
            parts.append(f"the tokenizer loses text: {lost_share(self.val_text_lost)}")
        return ", ".join(parts)


def headline(trainer: Trainer, out: Path, state: State, recipe: str, epoch: int) -> str:
    """What is about to be trained, in lines of less than 80 columns but for a long folder.

    `epoch`: rows of the training data.
    """
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    train = trainer.config.train
    start = ""
    if state.step:
        start = f", from step {state.step:,} on"
    elif trainer.config.init is not None:
        start = f", from the weights of {trainer.config.init}"
    name = recipe or trainer.config.architecture
    lines = [
        name if name == str(out) else f"{name} in {out}",
        f"{count:,} parameters, {trainer.plan.precision} on {trainer.model.device}",
        f"{train.steps:,} steps of {train.batch_tokens:,} tokens{start}",
    ]
    lines += without_effect(trainer.config)
    if (epochs := train.steps * trainer.config.rows / epoch) > 1:
        lines.append(f"reads the training data {epochs:.3g} times")
    if trainer.plan.precision == "bf16-storage":
        lines.append("weights stored in bf16 lose small updates: not recommended")
    return "\n".join(lines)


def without_effect(config: RunConfig) -> list[str]:
    """A line for each setting that the run does not read, or that takes effect after its end."""
    schedule, optim, steps = config.schedule, config.optim, config.train.steps
    lines = []
    if (warmup := warmup_steps(schedule, steps)) > steps:
        lines.append(f"the warm-up of {warmup:,} steps is longer than the run: set schedule.warmup")
    lines += config.unread() + schedule.unread() + optim.unread()
    return lines + optim.average.unread(steps)


def ending(found: Result, config: RunConfig) -> str:
    """What a run that has ended came to, and what to try next, a command a line."""
    out = shlex.quote(str(found.out))
    prompt = "def main(" if config.data.source == "stdlib" else "The "
    first = f"generate {out} --prompt {shlex.quote(prompt)}"
    if config.objective == "mlm":
        first = f"eval {out}"
    elif math.isnan(found.val_loss):
        first = f"inspect {out}"
    lines = ["next:", f"  unitsphere {first}", f"  unitsphere report {out}"]
    if found.trained:
        said = f"done: loss {found.loss:.4f}, {found.validation()}"
        lines = [said, f"{found.step:,} steps in {duration(found.seconds)}, in {found.out}", *lines]
    elif config.schedule.kind == "constant":
        lines.append(f"  unitsphere train {out} --train.steps MORE")
    else:
        lines.append(f"  unitsphere train {out} --init {out} --out NEW")
    return "\n".join(lines)


def result(out: Path, trained: bool) -> Result:
    """The result of a finished run from its last record; UserError if metrics.jsonl has none."""
    records = [record for record in read_metrics(out) if {"tokens", "time"} <= record.keys()]
    if not records:
        raise UserError(
            f"{out} is finished, but its metrics.jsonl holds no record: "
            f"evaluate its checkpoint with `unitsphere eval {out}`"
        )
    last = records[-1]
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
        val_text_lost=last.get("val_text_lost"),
    )
