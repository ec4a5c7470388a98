"""One run, from config to run folder. `train` starts it, resumes it, or returns a finished one."""

import math
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unitsphere.config import from_dict, to_dict
from unitsphere.data.batches import Prefetch
from unitsphere.data.prepare import check_apart
from unitsphere.errors import RunFailed, UserError
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.saver import Saver
from unitsphere.training.checkpoint.store import State
from unitsphere.training.checkpoint.tensors import load_model, load_optimizer, set_rng_state
from unitsphere.training.compile_cache import kept_cache
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import Corpus, open_corpus
from unitsphere.training.device import environment
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.distributed.processes import (
    check_alike,
    gather,
    limit_waits,
    local_first,
    on_all_ranks,
    on_first,
    on_ranks,
    processes,
)
from unitsphere.training.folder import (
    CHECKPOINTS,
    SIGNATURE,
    TOKENIZER,
    check_there,
    cut_evaluations,
    disk_errors,
    keep_end,
    locked,
    remove_leftovers,
    signature,
    write_config,
    write_environment,
)
from unitsphere.training.forecast import forecast
from unitsphere.training.guard import Diverged, RolledBack
from unitsphere.training.load import check_checkpoint, find_start, last_state
from unitsphere.training.log import QuietLog, RunLog
from unitsphere.training.monitor import RunMonitor, Sampler
from unitsphere.training.optim.roles import trained
from unitsphere.training.optim.schedule import steps_alike, warmup_steps
from unitsphere.training.plan import Plan, Trainer, build_trainer, plan_run, rows_at_once
from unitsphere.training.resolve import agreed_config, check_same, config_in
from unitsphere.training.result import Result, headline, result
from unitsphere.training.step import train_steps
from unitsphere.training.stop import Stop, Watchdog, seconds_of
from unitsphere.training.tracking import Tracker, check_installed

PREPARING = timedelta(days=1)
"""How long the other processes wait for one that prepares the data or checks a checkpoint: these
may take longer than `parallel.timeout`. One that dies meanwhile ends all at once."""


def train(
    config: RunConfig, out: Path | str, recipe: str = "", sampler: Sampler | None = None
) -> Result:
    """Train `config` in the run folder `out`; resume if the folder holds the same run.

    A finished run is returned as it is. `recipe` names the config in what is printed; `sampler`
    writes the samples, if there is one. Raises UserError for a config that cannot be trained or
    differs from that of `out`, for unusable data, a full disk, or a loss that is NaN or infinite,
    and `Preempted` when a signal stopped the run and it was saved.
    """
    out, limit = Path(out), config.train.time_limit
    with processes(config.parallel, config.train.device) as layout, ExitStack() as stack:
        stop = Stop(None if limit is None else seconds_of(limit), layout)
        on_ranks(layout, layout.first, lambda: stack.enter_context(locked(out)))
        on_ranks(layout, layout.first, lambda: check_installed(config.train.wandb))
        config = agreed_config(layout, config, out)
        patient = layout.aside(PREPARING)
        state = agreed_state(patient, out, config)
        if state is not None and state.over(config.train.steps):
            found = result(out, trained=False)
            if math.isnan(found.val_loss) and state.watch.diverged is None:
                raise RunFailed(f"{out} ended with a loss that is NaN or infinite: start a new run")
            if layout.first:
                print(
                    f"{out} is finished: {found.step} steps, {found.validation()}; "
                    "nothing to train",
                    file=sys.stderr,
                )
            return found
        plan = agreed_plan(layout, config)
        layout = plan.layout
        config = replace(config, train=replace(config.train, micro_batch=plan.micro_batch))
        if plan.compiled:
            stack.enter_context(kept_cache(out, layout.local_rank == 0))
        if state is not None:
            on_all_ranks(layout, partial(check_there, out, config))
        for source in (config.data.source, config.data.validation):
            on_all_ranks(layout, partial(check_apart, out, source, "--out"))
        corpus = local_first(patient, partial(open_corpus, config))
        check_alike(layout, "data", {"fingerprint": corpus.fingerprint})
        start = None
        if state is None:
            state = State(0, 0, 0.0, 0, corpus.fingerprint, torch.__version__)
            start = on_first(patient, partial(find_start, config, corpus.tokenizer))
        on_all_ranks(layout, partial(check_data, out, state, corpus))
        corpus = replace(corpus, validate=partial(corpus.validate, layout=layout))
        weights = None if start is None else Path(start["checkpoint"])
        build = partial(build_trainer, config, corpus.batches, plan, weights)
        trainer = on_all_ranks(layout, build)
        with disk_errors(out):
            on_ranks(
                patient, layout.first, partial(begin_folder, out, trainer, corpus, state, start)
            )
            Session(trainer, corpus, out, stop, patient, recipe, sampler).to_end(state)
        return result(out, trained=True)


def agreed_plan(layout: Layout, config: RunConfig) -> Plan:
    """Returns the run's plan, with as many sequences at once on all ranks as suit rank 0."""
    plan = on_all_ranks(layout, partial(plan_run, config, layout))
    limit_waits(plan.layout, config.parallel.timeout)
    rows = on_all_ranks(plan.layout, partial(rows_at_once, config, plan))
    return replace(plan, micro_batch=gather(plan.layout, rows)[0])


def begin_folder(
    out: Path, trainer: Trainer, corpus: Corpus, state: State, start: dict[str, Any] | None
) -> None:
    """Write the files that describe a run; `start` says where its first weights come from."""
    kept = keep_end(out, state.step)
    if kept is not None:
        print(f"what came after step {state.step} is kept in {kept}", file=sys.stderr)
    cut_evaluations(out, state.step)
    remove_leftovers(out)
    write_config(out, trainer.config)
    found = environment(trainer.model.device) | {"processes": trainer.plan.layout.degrees._asdict()}
    found["data"] = {"source": trainer.config.data.source, "fingerprint": corpus.input}
    found[SIGNATURE] = signature(trainer.config.data)
    found["optimizer"] = trained(trainer.model, trainer.optimizer)
    if start is not None:
        found["init"] = start
    write_environment(out, found, state.step)
    corpus.tokenizer.save(out / TOKENIZER)


@dataclass(frozen=True)
class Session:
    """All that a run trains with, from whichever of its checkpoints."""

    trainer: Trainer
    corpus: Corpus
    out: Path
    stop: Stop
    patient: Layout
    recipe: str
    sampler: Sampler | None

    def to_end(self, state: State) -> None:
        """Train from `state`, and again from the last checkpoint whenever a spike asks for that."""
        while True:
            try:
                return self.train_from(state)
            except Diverged:
                return
            except RolledBack as spike:
                last = agreed_state(self.patient, self.out, self.trainer.config)
                if last is None:
                    raise UserError(
                        f"{spike}, and {self.out} has no checkpoint yet to go back to: start a new "
                        "run with a lower train.save_every or optim.lr, or train.on_spike skip"
                    ) from spike
                if self.trainer.plan.layout.first:
                    print(f"{spike}: back to step {last.step}, to leave it out", file=sys.stderr)
                self.trainer.guard.dropped.add(spike.step)
                state = last

    def train_from(self, state: State) -> None:
        """Load the checkpoint of `state` into the run's objects, and train to the end."""
        trainer, out, train = self.trainer, self.out, self.trainer.config.train
        self.load(state)
        # Its group waits for all processes: made while a signal still ends whoever it comes to.
        saver = Saver(
            out / CHECKPOINTS,
            train.keep_last,
            train.keep_every,
            train.async_save,
            trainer.plan.layout,
        )
        with ExitStack() as stack:
            stack.enter_context(self.stop)
            log = stack.enter_context(open_log(stack, trainer, out, state))
            stack.enter_context(saver)
            log.say(headline(trainer, out, state, self.recipe, self.corpus.epoch))
            if trainer.plan.layout.first and (
                trainer.plan.layout.world > 1 or trainer.model.device.type == "cuda"
            ):
                log.say(forecast(trainer.config, trainer.model, trainer.plan.layout).line())
            hang = None if train.hang_timeout is None else seconds_of(train.hang_timeout)
            watch = stack.enter_context(Watchdog(hang))
            monitor = RunMonitor(
                trainer, out, state, log, self.corpus, self.stop, saver, watch, self.sampler
            )
            monitor.resume()
            batches = stack.enter_context(Prefetch(trainer.batches, trainer.config.data.prefetch))
            train_steps(replace(trainer, batches=batches), state.step, monitor)

    def load(self, state: State) -> None:
        """Bring weights, optimizer, generators and the guard to where `state` was saved."""
        trainer = self.trainer
        torch.manual_seed(trainer.config.train.seed)  # dropout draws from the default generators
        if state.step:
            folder = checkpoint.folder_of(self.out / CHECKPOINTS, state.step)
            load_model(folder, trainer.model)
            load_optimizer(folder, trainer.model, trainer.optimizer)
            set_rng_state(state.rng, state.rng_device, trainer.model.device)
        trainer.guard.load(state.losses, state.losses_seen, trainer.model.device, state.spikes)


def open_log(stack: ExitStack, trainer: Trainer, out: Path, state: State) -> RunLog:
    """The run's log, of which only the first process's writes; what it opens too is `stack`'s."""
    if not trainer.plan.layout.first:
        return QuietLog(out)
    train, logged = trainer.config.train, state.step - bool(state.unfinished)
    also = None
    if train.wandb is not None:
        tracker = Tracker(train.wandb, out, to_dict(trainer.config))
        stack.callback(tracker.close)
        also = tracker.add
    return RunLog(out, logged, train.steps, state.samples, also)


def agreed_state(layout: Layout, out: Path, config: RunConfig) -> State | None:
    """Returns, on all ranks, the state of `out` from which `config` resumes, as rank 0 finds it."""

    def find() -> dict[str, Any] | None:
        state = last_state(out)
        if state is not None:
            state = state_on_the_way(out, config, state)
            check_checkpoint(config, checkpoint.folder_of(out / CHECKPOINTS, state.step))
        return None if state is None else to_dict(state)

    found = on_first(layout, find)
    return None if found is None else from_dict(State, found)


def state_on_the_way(out: Path, config: RunConfig, last: State) -> State:
    """`last`, or an earlier state if `config` gives the run another length or schedule.

    It is the newest whose steps had the rates that `config` has for them, so that the run is the
    same as if it had been started with `config`. A run that is to end at a step that is saved makes
    this step again, as its last. Raises UserError if there is none.
    """
    saved = config_in(out)
    if saved is None or (saved.schedule, saved.train.steps) == (
        config.schedule,
        config.train.steps,
    ):
        return last
    steps, more = saved.train.steps, config.train.steps
    if more < last.step:
        raise UserError(
            f"{out} has {last.step} steps already, more than train.steps {more}: give another --out"
        )
    find_alike = partial(
        steps_alike,
        cooldowns=config.optim.roles.cooldowns,
        momentum_cooldown=config.optim.momentum_cooldown,
    )
    alike = find_alike(saved.schedule, steps, config.schedule, more)
    averaged = config.optim.average.steps_alike(steps, more)
    folder, _ = checkpoint.newest(out / CHECKPOINTS, min(alike, averaged, more - 1))
    if folder is None and more == last.step <= min(alike, averaged):
        raise UserError(
            f"{out} cannot end at step {more}, its last: no checkpoint from before that is left to "
            "make this step again and validate; give a larger train.steps, or another --out"
        )
    if folder is None and averaged < min(alike, last.step):
        raise UserError(
            f"{out} cannot be resumed to {more} steps: its average of weights starts after a "
            "fraction of the run, and no checkpoint from before that is left; give another --out"
        )
    if folder is None and saved.schedule != config.schedule:
        check_same(out, saved, config)
    if folder is None:
        warm = warmup_steps(saved.schedule, steps)
        kept = replace(config.schedule, warmup=warm)
        if warm and find_alike(saved.schedule, steps, kept, more) >= last.step:
            raise UserError(
                f"{out} cannot be resumed to {more} steps: its warm-up is a fraction of the run "
                f"and would grow with it; add --schedule.warmup {warm} to keep it as it was"
            )
        raise UserError(
            f"{out} cannot be resumed to {more} steps: its {saved.schedule.kind} schedule of "
            f"{steps} steps has other rates than one of {more} from step {alike + 1} on, and no "
            "checkpoint from before that is left. Start a new run with its weights (unitsphere "
            f"train {out} --init {out} --train.steps N --out NEW), or train {more} steps from the "
            f"start (unitsphere train {out} --train.steps {more} --out NEW)"
        )
    return checkpoint.load_state(folder)


def check_data(out: Path, state: State, corpus: Corpus) -> None:
    """Raise UserError unless the data are those that the run was started with."""
    if state.data != corpus.fingerprint:
        raise UserError(
            f"the data are not those that {out} was started with: restore them, or give another "
            "--out to start over"
        )
