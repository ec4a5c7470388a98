"""What is due between two steps: records, validation, samples, checkpoints, stopping.

Losses stay on the device until a record is due, so that a GPU never waits for the host.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import Preempted, RunFailed
from unitsphere.models.trunk import Transformer
from unitsphere.training.checkpoint.saver import Saver
from unitsphere.training.checkpoint.store import State
from unitsphere.training.checkpoint.tensors import rng_state
from unitsphere.training.corpus import Corpus
from unitsphere.training.device import autocast, peak_flops
from unitsphere.training.distributed.processes import Stragglers
from unitsphere.training.evaluate.text import evaluating
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.guard import Diverged
from unitsphere.training.log import RunLog
from unitsphere.training.optim.average import averaged, is_averaging
from unitsphere.training.optim.roles import current_rates
from unitsphere.training.optim.state import first_moments
from unitsphere.training.plan import Trainer
from unitsphere.training.step import all_finite, as_fsdp
from unitsphere.training.stop import Stop, Watchdog

Sampler = Callable[[Transformer, Tokenizer, Batch], str]
"""What a model in training writes, for samples.txt, perhaps about a row of the validation data."""


class Stopping(Exception):
    """A stop is due, in the middle of what must be left before the run is saved."""


class RunMonitor:
    """Watches a run from `state` on: the loop calls `after` when a step is done.

    done: steps after which all that was due has been done. A stop saves the state there, however
    much of the next step or of this one's validation is done.
    """

    def __init__(
        self,
        trainer: Trainer,
        out: Path,
        state: State,
        log: RunLog,
        corpus: Corpus,
        stop: Stop,
        saver: Saver,
        watch: Watchdog,
        sampler: Sampler | None,
    ) -> None:
        self.trainer, self.out, self.log, self.stop, self.saver = trainer, out, log, stop, saver
        self.watch = watch
        self.corpus, self.sampler = corpus, sampler
        self.data, self.seconds = state.data, state.seconds
        self.pending: list[tuple[int, Tensor, Tensor, Tensor]] = []
        self.divergence = state.watch
        self.recorded = state.step, state.seconds
        self.done = self.saved = state.step
        self.unfinished = state.unfinished
        self.rng = rng_state(trainer.model.device)
        self.peak = peak_flops(trainer.model.device, trainer.plan.precision)
        if trainer.config.objective == "seq2seq":
            self.peak = None  # A pair is shorter than what it counts as: the figure would flatter.
        self.stragglers = Stragglers(trainer.plan.layout, trainer.local_time, log.say)
        self.flops = flops_per_token(trainer.model, trainer.config.data.context)
        self.clock = time.perf_counter()

    def resume(self) -> None:
        """Finish what a stop in the middle of a validation left, before the first step."""
        if self.unfinished:
            self.finish(self.done, self.unfinished)
            self.unfinished = {}
            self.save()
            self.clock = time.perf_counter()

    def between(self) -> None:
        """Called between micro-batches.

        Raises Preempted if a stop is due, when the last whole step is saved.
        """
        self.watch.beat()
        if self.stop.due():
            self.save_and_exit()

    def between_batches(self) -> None:
        """Called between batches of a validation; raises Stopping if a stop is due."""
        self.watch.beat()
        if self.stop.due():
            raise Stopping

    def after(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Do what is due when `step` updates have been made."""
        self.pending.append((step, loss, grad_norm, self.trainer.guard.limit))
        self.done, self.rng = step, rng_state(self.trainer.model.device)
        self.watch.beat()
        self.saver.check()
        train = self.trainer.config.train
        last = step == train.steps
        probes = self.trainer.live.due(step)
        records = (
            probes or last or step == 1 or due(step, train.log_every) or due(step, train.eval_every)
        )
        samples = last or due(step, train.sample_every)
        saves = last or due(step, train.save_every) or due(step, train.keep_every or 0)
        if records or samples or saves:
            values = self.read_pending(records)
            if self.divergence.diverged is not None:
                self.end(step, self.divergence.diverged, values | self.rates(lr))
            if records:
                compared = self.stragglers.compare(self.seconds - self.recorded[1])
                values |= self.rates(lr) | self.pace(step) | compared | self.probe(step)
            self.finish(step, values if records else {})
            if saves:
                self.save()
            self.clock = time.perf_counter()
        if self.stop.due() and not last:
            self.save_and_exit()

    def finish(self, step: int, values: dict[str, float]) -> None:
        """Validate if that is due, write the record of `values`, if there are any, and samples."""
        train = self.trainer.config.train
        last = step == train.steps
        if values:
            self.unfinished = values
            validates = last or due(step, train.eval_every)
            values = values | (self.validate() if validates else {})
            broken = validates and not math.isfinite(values["val_loss"])
            self.unfinished = {}
            if broken and train.stop_at_divergence:
                self.divergence = replace(self.divergence, diverged=step)
                self.end(step, step, values)
            self.log.record(self.stamp(step) | values)
            if broken:
                self.fail(step, f"validation loss {values['val_loss']}")
        if last or due(step, train.sample_every):
            self.sample(step)

    def fail(self, step: int, why: str) -> NoReturn:
        """Raise RunFailed about a step after which nothing is saved."""
        raise RunFailed(
            f"step {step}: {why}; start a new run with a lower optim.lr (now "
            f"{self.trainer.config.optim.lr}) or a longer schedule.warmup; nothing of this step is "
            "saved, checkpoints are kept"
        )

    def probe(self, step: int) -> dict[str, float]:
        """What the live probes show, if that is due."""
        trainer = self.trainer
        precision = autocast(trainer.model.device, trainer.plan.precision)
        moments = partial(first_moments, trainer.model, trainer.optimizer)
        return trainer.live.record(step, trainer.model, moments, self.corpus.example, precision)

    def validate(self) -> dict[str, float]:
        """The figures of a validation; of the averaged weights, once they differ, the loss.

        Raises Preempted if a stop comes in the middle of it.
        """
        trainer, precision = self.trainer, self.trainer.plan.precision
        model, optimizer = trainer.model, trainer.optimizer
        validate = partial(
            self.corpus.validate, model, precision=precision, between=self.between_batches
        )
        try:
            found = validate().record()
            if is_averaging(optimizer):
                with averaged(model, optimizer, trainer.config.optim.constrained):
                    found["val_loss_average"] = validate().loss
        except Stopping:  # the model has its own weights again
            self.save_and_exit()
        return found

    def save_and_exit(self) -> NoReturn:
        """Save, unless that is already done, and raise Preempted."""
        steps, before = self.trainer.config.train.steps, self.saved
        if not self.done:
            raise Preempted("stopped before the first step was made: the same command starts again")
        if self.pending:
            self.read_pending(records=False)
        if self.unfinished or before != self.done:
            self.save()
        self.saver.wait()
        raise Preempted(
            f"stopped and saved at step {self.done} of {steps} in {self.out}: "
            "the same command resumes there"
        )

    def end(self, step: int, diverged: int, values: dict[str, float]) -> NoReturn:
        """Write the last record and save, since the loss has diverged; raises Diverged."""
        self.log.record(self.stamp(step) | values | {"diverged": diverged})
        self.log.say(f"the loss diverged at step {diverged}: the run ends")
        self.save()
        self.saver.wait()
        raise Diverged

    def stamp(self, step: int) -> dict[str, float]:
        """What every record begins with."""
        tokens = step * self.trainer.config.train.batch_tokens
        return {"step": step, "tokens": tokens, "time": round(self.seconds, 4)}

    def read_pending(self, records: bool) -> dict[str, float]:
        """Read the figures that are still on the device, and the clock; those of the last step.

        A spike gets a separate record, unless it is the last step and that has one anyway.
        Raises RunFailed for a spike if the run is to stop or has had too many, RolledBack if it is
        to go back.
        """
        rows = [torch.stack([part.double() for part in row]) for _, *row in self.pending]
        read = torch.stack(rows).tolist()
        self.seconds += time.perf_counter() - self.clock
        found = {}
        for (step, *_), (loss, grad_norm, limit) in zip(self.pending, read, strict=True):
            values = {"loss": loss, "grad_norm": grad_norm}
            found = {name: value for name, value in values.items() if math.isfinite(value)}
            if self.trainer.config.train.stop_at_divergence:
                known = loss if math.isfinite(grad_norm) else math.nan
                if math.isfinite(known) or not self.trainer.guard.bears(step):
                    self.divergence = self.divergence.after(step, known)
            dropped = step - 1 in self.trainer.guard.dropped
            if dropped or len(found) < len(values) or loss > limit:
                found["spike"] = 1.0
                if self.divergence.diverged is None:
                    self.handle_spike(step, **values, limit=limit)
                if step != self.done or not records:
                    self.log.record(self.stamp(step) | found)
        self.pending.clear()
        return found

    def handle_spike(self, step: int, loss: float, grad_norm: float, limit: float) -> None:
        """Say that a step was a spike, or raise what the run is to do about it."""
        advice = (
            f"start a new run with a lower optim.lr (now {self.trainer.config.optim.lr}) or a "
            "longer schedule.warmup, or see train.on_spike; checkpoints are kept, and `unitsphere "
            f"replay {self.out} --step {step}` shows the batch"
        )
        why = self.trainer.guard.handle(step, loss, grad_norm, limit, advice)
        self.log.say(f"{why}: left out")

    def rates(self, lr: float) -> dict[str, float]:
        """The learning rate, and those of embedding, head and so on where they differ from it."""
        kinds = current_rates(self.trainer.model, self.trainer.optimizer)
        others = {f"lr_{kind}": rate for kind, rate in kinds.items() if kind != "matrix"}
        return {"lr": lr} | {key: rate for key, rate in others.items() if rate != lr}

    def pace(self, step: int) -> dict[str, float]:
        """Tokens per second since the last record, and the share of the device's peak."""
        before, seconds = self.recorded
        self.recorded = step, self.seconds
        rate = (step - before) * self.trainer.config.train.batch_tokens / (self.seconds - seconds)
        peak = None if self.peak is None else self.peak * self.trainer.plan.layout.world
        share = {} if peak is None else {"mfu": rate * self.flops / peak}
        return {"tokens_per_second": rate} | share

    def sample(self, step: int) -> None:
        """Sample text into samples.txt."""
        if self.sampler is not None:
            corpus, model = self.corpus, self.trainer.model
            if (wrapped := as_fsdp(model)) is not None:
                wrapped.unshard()  # embedding and head, which decoding uses outside `forward`
            with evaluating(model), autocast(model.device, self.trainer.plan.precision):
                self.log.sample(step, self.sampler(model, corpus.tokenizer, corpus.example))

    def save(self) -> None:
        """Save a checkpoint of `done` steps, and delete those that are too old.

        Raises RunFailed, and saves nothing, if weights are NaN or infinite; where the run is to end
        when it diverges, the next loss shows that.
        """
        trainer = self.trainer
        ends = trainer.config.train.stop_at_divergence
        if not ends and not all_finite(trainer.model, trainer.plan.layout):
            self.fail(self.done, "weights that are NaN or infinite")
        self.log.sync()
        losses, seen = self.trainer.guard.state()
        state = State(
            step=self.done,
            tokens=self.done * self.trainer.config.train.batch_tokens,
            seconds=self.seconds,
            samples=self.log.samples_size(),
            data=self.data,
            torch_version=torch.__version__,
            rng=self.rng[0],
            rng_device=self.rng[1],
            unfinished=self.unfinished,
            losses=losses,
            losses_seen=seen,
            spikes=self.trainer.guard.spikes,
            watch=self.divergence,
        )
        self.saver.save(state, self.trainer.model, self.trainer.optimizer)
        self.stop.saving = self.saver.longest
        self.saved = self.done


def due(step: int, every: int) -> bool:
    """Whether something that happens each `every` steps, 0 for never, happens at `step`."""
    return every > 0 and step % every == 0
