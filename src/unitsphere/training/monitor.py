"""What is due between two steps: records, validation, samples, checkpoints, stopping.

Losses stay on the device until a record is due, so that a GPU never waits for the host.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.models.trunk import Transformer
from unitsphere.training import checkpoint
from unitsphere.training.checkpoint import State
from unitsphere.training.corpus import Corpus
from unitsphere.training.evaluate import evaluating
from unitsphere.training.flops import flops_per_token, peak_flops
from unitsphere.training.log import RunLog
from unitsphere.training.loop import Job
from unitsphere.training.stop import Preempted, StopSignals
from unitsphere.training.tensors import rng_state

Sampler = Callable[[Transformer, Tokenizer, Batch], str]
"""What a model in training writes, for samples.txt, perhaps about a row of the validation data."""


class RunMonitor:
    """Watches a run from `state` on: the loop calls `after` when a step is done."""

    def __init__(
        self,
        job: Job,
        out: Path,
        state: State,
        log: RunLog,
        corpus: Corpus,
        stop: StopSignals,
        sampler: Sampler | None,
    ) -> None:
        self.job, self.out, self.log, self.stop = job, out, log, stop
        self.corpus, self.sampler = corpus, sampler
        self.data, self.seconds = state.data, state.seconds
        self.pending: list[tuple[int, Tensor, Tensor]] = []
        self.recorded = state.step, state.seconds
        self.saved = state.step
        self.peak = peak_flops(job.model.device, job.precision)
        if job.config.objective == "seq2seq":
            self.peak = None  # A pair is shorter than what it counts as: the figure would flatter.
        self.flops = flops_per_token(job.model, job.config.data.context)
        self.clock = time.perf_counter()

    def after(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Do what is due when `step` updates have been made."""
        self.pending.append((step, loss, grad_norm))
        train = self.job.config.train
        last = step == train.steps
        validates = last or due(step, train.eval_every)
        records = validates or step == 1 or due(step, train.log_every)
        samples = last or due(step, train.sample_every)
        saves = last or due(step, train.save_every)
        if records or samples or saves or self.stop.requested:
            values = self.settle()
            if records:
                self.record(step, values | {"lr": lr}, validates)
            if samples:
                self.sample(step)
            if saves or self.stop.requested:  # which may have come during the validation
                self.save(step)
            self.clock = time.perf_counter()
        if self.stop.requested and self.saved == step and not last:
            raise Preempted(
                f"stopped and saved at step {step} of {train.steps} in {self.out}: "
                "the same command goes on from there"
            )

    def settle(self) -> dict[str, float]:
        """Read the losses that are still on the device, and the clock; the last step's values.

        Raises UserError if one of them is not a finite number.
        """
        read = torch.stack([torch.stack(pair) for _, *pair in self.pending]).tolist()
        self.seconds += time.perf_counter() - self.clock
        for (step, *_), values in zip(self.pending, read, strict=True):
            if not all(map(math.isfinite, values)):
                raise UserError(
                    f"step {step}: loss {values[0]}, gradient norm {values[1]}; start a new run "
                    f"with a lower optim.lr (now {self.job.config.optim.lr}) or a longer "
                    f"schedule.warmup; checkpoints in {self.out} are kept"
                )
        self.pending.clear()
        return {"loss": read[-1][0], "grad_norm": read[-1][1]}

    def record(self, step: int, values: dict[str, float], validates: bool) -> None:
        """Write the record of `step`, with the validation's figures if that is due."""
        before, seconds = self.recorded
        batch = self.job.config.train.batch_tokens
        rate = (step - before) * batch / (self.seconds - seconds)
        values = values | {"tokens_per_second": rate}
        if self.peak is not None:
            values["mfu"] = rate * self.flops / self.peak
        if validates:
            values |= self.corpus.validate(self.job.model, precision=self.job.precision).record()
        self.recorded = step, self.seconds
        place = {"step": step, "tokens": step * batch, "time": round(self.seconds, 4)}
        self.log.record(place | values)

    def sample(self, step: int) -> None:
        """Sample text into samples.txt."""
        if self.sampler is not None:
            corpus, model = self.corpus, self.job.model
            with evaluating(model):
                self.log.sample(step, self.sampler(model, corpus.tokenizer, corpus.example))

    def save(self, step: int) -> None:
        """Save a checkpoint, unless this step has one, and delete those that are too old."""
        if step == self.saved:
            return
        self.log.sync()
        train, device = self.job.config.train, self.job.model.device
        cpu, gpu = rng_state(device)
        state = State(
            step=step,
            tokens=step * train.batch_tokens,
            seconds=self.seconds,
            samples=self.log.samples_size(),
            data=self.data,
            torch_version=torch.__version__,
            rng=cpu,
            rng_device=gpu,
        )
        root = self.out / "checkpoints"
        saved = checkpoint.save(root, state, self.job.model, self.job.optimizer)
        checkpoint.prune(saved, train.keep_last)
        self.saved = step


def due(step: int, every: int) -> bool:
    """Whether something that happens each `every` steps, 0 for never, happens at `step`."""
    return every > 0 and step % every == 0
