"""One run: config → objects → run folder. `train` begins a run, goes on with it, or reuses it."""

import math
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unitsphere.config import flatten, from_dict, to_dict
from unitsphere.data.prefetch import Prefetch
from unitsphere.data.prepare import tokenizer_spec
from unitsphere.errors import UserError
from unitsphere.kernels import use_attention_of, use_kernels
from unitsphere.models.registry import build_from
from unitsphere.training import checkpoint
from unitsphere.training.checkpoint import State
from unitsphere.training.compiling import compiles, keep_cache
from unitsphere.training.config import Precision, RunConfig
from unitsphere.training.constraint import constrain
from unitsphere.training.corpus import Batches, Corpus, model_vocabulary, open_corpus
from unitsphere.training.device import FP8_NEEDS, pick_device, pick_precision
from unitsphere.training.environment import environment
from unitsphere.training.folder import (
    check_same,
    disk_errors,
    locked,
    saved_config,
    write_config,
    write_environment,
)
from unitsphere.training.fp8 import use_fp8
from unitsphere.training.guard import Guard, RolledBack
from unitsphere.training.load import LoadedRun, load_run
from unitsphere.training.log import RunLog, read_metrics
from unitsphere.training.loop import Job, train_steps
from unitsphere.training.monitor import RunMonitor, Sampler
from unitsphere.training.optim import build_optimizer
from unitsphere.training.parallel.agree import check_alike, everywhere, on_first, one_by_one, where
from unitsphere.training.parallel.forecast import fitting_rows, forecast
from unitsphere.training.parallel.layout import SINGLE, Layout, check_rows, degrees
from unitsphere.training.parallel.parallelize import parallelize
from unitsphere.training.parallel.processes import own_device, processes
from unitsphere.training.parallel.quiet import AgreedStop, QuietLog
from unitsphere.training.saver import Saver
from unitsphere.training.schedule import warmup_steps
from unitsphere.training.stop import Preempted, Stop, seconds_of
from unitsphere.training.tensors import load_model, load_optimizer, set_rng_state
from unitsphere.training.watchdog import Watchdog

__all__ = ["LoadedRun", "Preempted", "Result", "load_run", "train"]


@dataclass(frozen=True)
class Result:
    """How a run ended: its last record, and whether this call trained at all.

    val_bits_per_byte is None where the objective has none, val_accuracy where it is not measured.
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
        """The last validation in a few words."""
        parts = [f"validation loss {self.val_loss:.4f}"]
        if self.val_bits_per_byte is not None:
            parts.append(f"{self.val_bits_per_byte:.4f} bits/byte")
        if self.val_accuracy is not None:
            parts.append(f"{self.val_accuracy:.1%} of the masked tokens right")
        return ", ".join(parts)


def train(
    config: RunConfig, out: Path | str, recipe: str = "", sampler: Sampler | None = None
) -> Result:
    """Train `config` in the run folder `out`; on a folder of the same run, go on with it.

    A finished run is returned as it is. `recipe` names the config in what is printed; `sampler`
    writes the samples, if there is one. Raises UserError for a config that cannot be trained
    or is not that of `out`, for unusable data, a full disk, or a loss that is no number, and
    `Preempted` when a signal stopped the run and it was saved.
    """
    out, limit = Path(out), config.train.time_limit
    with processes(config.parallel, config.train.device) as layout, ExitStack() as stack:
        stop = AgreedStop(layout, None if limit is None else seconds_of(limit))
        where(layout, layout.first, lambda: stack.enter_context(locked(out)))
        config = agreed_config(layout, config, out)
        state = agreed_state(layout, out)
        if state is not None and state.step == config.train.steps and not state.unfinished:
            found = result(out, trained=False)
            if layout.first:
                print(
                    f"{out} is finished: {found.step} steps, {found.validation()}; "
                    "nothing to train",
                    file=sys.stderr,
                )
            return found
        if compiles(config.train.compile, own_device(config.train.device)):
            keep_cache(out)
        corpus = one_by_one(layout, partial(open_corpus, config))
        check_alike(layout, "data", {"fingerprint": corpus.fingerprint})
        state = state or first_state(corpus)
        everywhere(layout, partial(check_data, out, state, corpus))
        layout = everywhere(layout, partial(place, layout, config))
        corpus = replace(corpus, validate=partial(corpus.validate, layout=layout))
        job = everywhere(layout, partial(build_job, config, corpus.batches, layout))
        job = with_micro_batch(job)
        with disk_errors(out):
            where(layout, layout.first, partial(begin_folder, out, job, corpus, state))
            run_to_end(state, job, corpus, out, stop, recipe, sampler)
        return result(out, trained=True)


def agreed_config(layout: Layout, config: RunConfig, out: Path) -> RunConfig:
    """`config` resolved; the same in all processes, and that of the run in `out`, if there is one.

    Raises UserError where it is not.
    """

    def decide() -> RunConfig:
        saved = saved_config(out)
        resolved = resolve(config, saved)
        if saved is not None:
            check_same(out, saved, resolved)
        return resolved

    resolved = everywhere(layout, decide)
    check_alike(layout, "config", flatten(to_dict(resolved)))
    return resolved


def agreed_state(layout: Layout, out: Path) -> State | None:
    """The state that the first process found in `out`, in all of them."""

    def find() -> dict[str, Any] | None:
        state = last_state(out)
        return None if state is None else to_dict(state)

    found = on_first(layout, find)
    return None if found is None else from_dict(State, found)


def place(layout: Layout, config: RunConfig) -> Layout:
    """This process's place once the degrees of parallelism are decided by the model's size."""
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
    count = sum(parameter.numel() for parameter in model.parameters())
    found = degrees(config.parallel, layout.world, count)
    check_rows(config.train.batch_tokens // config.data.context, config.data.context, found)
    return layout.with_degrees(found, own_device(config.train.device).type)


def begin_folder(out: Path, job: Job, corpus: Corpus, state: State) -> None:
    """Write what a run folder says of itself."""
    write_config(out, job.config)
    found = environment(job.model.device) | {"processes": job.layout.degrees._asdict()}
    write_environment(out, found, state.step)
    corpus.tokenizer.save(out / "tokenizer.json")


def resolve(config: RunConfig, saved: RunConfig | None) -> RunConfig:
    """`config` with what it leaves open decided; a run that goes on keeps what it decided.

    The precision "auto" depends on the device, and `model.vocab_size` none on the tokenizer and
    the objective.
    Raises UserError for values that do not go together.
    """
    tokens, context = config.train.batch_tokens, config.data.context
    if tokens % context:
        raise UserError(
            f"train.batch_tokens {tokens} is no multiple of data.context {context}: "
            f"{max(round(tokens / context), 1) * context} is the nearest that is"
        )
    precision = decide_precision(config, saved)
    model = replace(config.model, vocab_size=model_vocabulary(config))
    check_model(replace(config, model=model))
    return replace(
        config,
        model=model,
        data=replace(config.data, tokenizer=tokenizer_spec(config.data)),
        train=replace(config.train, precision=precision),
    )


def decide_precision(config: RunConfig, saved: RunConfig | None) -> Precision:
    """The run's precision on its device; a line on stderr where that cannot be fp8 as asked.

    A run begun in fp8 keeps it: `build_job` refuses to go on with it where there is none.
    """
    asked, device = config.train.precision, pick_device(config.train.device)
    before = None if saved is None else saved.train.precision
    if asked == "auto" and before is not None:
        asked = before
    if asked == before == "fp8":
        return "fp8"
    picked = pick_precision(asked, device)
    if asked == "fp8" and picked != "fp8":
        print(f"train.precision fp8 {FP8_NEEDS}: {picked} on {device} instead", file=sys.stderr)
    return picked


def check_model(config: RunConfig) -> None:
    """Raise UserError for a model that cannot be, or that is larger than any memory."""
    try:
        build_from(config.architecture, config.model, "meta", objective=config.objective)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond 64 bits
        said = str(error).partition("\n")[0]
        raise UserError(f"a model of these sizes cannot be built: {said}") from error


def last_state(out: Path) -> State | None:
    """The state of the newest complete checkpoint; None if nothing was saved yet.

    Damaged checkpoints are passed over with a line each. Raises UserError if there are only
    damaged ones.
    """
    folder, damaged = checkpoint.newest(out / "checkpoints")
    if folder is None and damaged:
        raise UserError(f"{damaged[0]}, and no other is complete: give another --out to start over")
    for line in damaged:
        print(f"{line}: {folder} serves instead", file=sys.stderr)
    return None if folder is None else checkpoint.load_state(folder)


def first_state(corpus: Corpus) -> State:
    """The state before the first step."""
    version = torch.__version__
    return State(0, 0, seconds=0.0, samples=0, data=corpus.fingerprint, torch_version=version)


def check_data(out: Path, state: State, corpus: Corpus) -> None:
    """Raise UserError unless the data are those that the run began with."""
    if state.data != corpus.fingerprint:
        raise UserError(
            f"the data are not those that {out} was begun with: restore them, or give another "
            "--out to start over"
        )


def run_to_end(
    state: State,
    job: Job,
    corpus: Corpus,
    out: Path,
    stop: Stop,
    recipe: str,
    sampler: Sampler | None,
) -> None:
    """`run_from`, and again from the last checkpoint whenever a spike asks for that."""
    while True:
        try:
            return run_from(state, job, corpus, out, stop, recipe, sampler)
        except RolledBack as spike:
            last = agreed_state(job.layout, out)
            if last is None:
                raise UserError(
                    f"{spike}, and {out} has no checkpoint yet to go back to: start a new run with "
                    "a lower train.save_every or optim.lr, or train.on_spike skip"
                ) from spike
            if job.layout.first:
                print(f"{spike}: back to step {last.step}, to leave it out", file=sys.stderr)
            job.guard.dropped.add(spike.step)
            state = last


def run_from(
    state: State,
    job: Job,
    corpus: Corpus,
    out: Path,
    stop: Stop,
    recipe: str,
    sampler: Sampler | None,
) -> None:
    """Load the checkpoint of `state` into the run's objects, and train to the end."""
    torch.manual_seed(job.config.train.seed)  # dropout draws from the default generators
    if state.step:
        folder = checkpoint.folder_of(out / "checkpoints", state.step)
        load_model(folder, job.model)
        load_optimizer(folder, job.model, job.optimizer)
        set_rng_state(state.rng, state.rng_device, job.model.device)
    job.guard.load(state.losses, state.losses_seen, job.model.device)
    train, logged = job.config.train, state.step - bool(state.unfinished)
    with ExitStack() as stack:
        stack.enter_context(stop)
        log = stack.enter_context(
            RunLog(out, logged, train.steps, state.samples) if job.layout.first else QuietLog(out)
        )
        saver = Saver(
            out / "checkpoints", train.keep_last, train.keep_every, train.async_save, job.layout
        )
        stack.enter_context(saver)
        log.say(headline(job, out, state, recipe))
        if job.layout.first and (job.layout.world > 1 or job.model.device.type == "cuda"):
            log.say(forecast(job.config, job.model, job.layout).line())
        hang = None if train.hang_timeout is None else seconds_of(train.hang_timeout)
        watch = stack.enter_context(Watchdog(hang))
        monitor = RunMonitor(job, out, state, log, corpus, stop, saver, watch, sampler)
        monitor.resume()
        batches = stack.enter_context(Prefetch(job.batches, job.config.data.prefetch))
        train_steps(replace(job, batches=batches), state.step, monitor)


def build_job(config: RunConfig, batches: Batches, layout: Layout = SINGLE) -> Job:
    """Model, optimizer with its constraint, and batches, at the start of the run.

    Raises UserError for fp8 on a device that has none, and for sizes that do not fit the layout.
    """
    device = own_device(config.train.device)
    precision = pick_precision(config.train.precision, device)
    if config.train.precision == "fp8" and precision != "fp8":
        raise UserError(
            f"train.precision fp8 {FP8_NEEDS}, and this is {device}: take bf16; a run begun in fp8 "
            "goes on in it alone, or starts over with another --out"
        )
    model = build_from(
        config.architecture, config.model, device, config.train.seed, config.objective
    )
    if precision == "bf16-storage":
        model.to(torch.bfloat16)
    use_kernels(config.train.kernels)
    use_attention_of(device)
    if precision == "fp8":
        use_fp8(model, config.optim.constraint.kind)
    loss = parallelize(
        model,
        layout,
        config.train.recompute,
        compiles(config.train.compile, device),
        label_smoothing=config.train.label_smoothing,
        z_loss=config.train.z_loss,
    )
    optimizer = build_optimizer(model, config.optim)
    warmup = warmup_steps(config.schedule, config.train.steps)
    constrain(model, optimizer, config=config.optim.constraint, warmup=warmup)
    guard = Guard(config.train.on_spike, config.train.spike_sigma)
    return Job(config, model, loss, optimizer, batches, precision, layout, guard)


def with_micro_batch(job: Job) -> Job:
    """The job with as many sequences at once as will fit a GPU, unless their number is given.

    The first process decides for all, which have as much to do and as much memory. On a CPU, whose
    memory is the machine's, the whole batch goes at once.
    """
    device, train = job.model.device, job.config.train
    if train.micro_batch is not None or device.type != "cuda":
        return job

    def decide() -> int:
        free, _ = torch.cuda.mem_get_info(device)
        return fitting_rows(job.config, job.model, job.layout, free)

    micro_batch = on_first(job.layout, decide)
    config = replace(job.config, train=replace(train, micro_batch=micro_batch))
    return replace(job, config=config)


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
    if warmup > train.steps:
        line += f"; the warm-up of {warmup} steps is longer than the run: set schedule.warmup"
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
        val_loss=last["val_loss"],
        val_bits_per_byte=last.get("val_bits_per_byte"),
        val_accuracy=last.get("val_accuracy"),
        trained=trained,
    )
