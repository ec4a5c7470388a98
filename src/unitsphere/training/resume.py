"""The state from which a run starts or resumes: a checkpoint's, or that of step 0."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unitsphere.config import from_dict, to_dict
from unitsphere.errors import UserError
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.store import State
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import Corpus
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.distributed.processes import on_first
from unitsphere.training.folder import CHECKPOINTS
from unitsphere.training.load import check_checkpoint
from unitsphere.training.optim.schedule import steps_alike, warmup_steps
from unitsphere.training.resolve import check_same, config_in


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


def last_state(out: Path) -> State | None:
    """The state of the newest complete checkpoint; None if nothing was saved yet.

    Damaged checkpoints are passed over with a line each. Raises UserError if there are only
    damaged ones.
    """
    folder, damaged = checkpoint.newest(out / CHECKPOINTS)
    for line in checkpoint.links(out / CHECKPOINTS):
        print(line, file=sys.stderr)
    if folder is None and damaged:
        raise UserError(f"{damaged[0]}, and no other is complete: give another --out to start over")
    for line in damaged:
        print(f"{line}: {folder} is used instead", file=sys.stderr)
    return None if folder is None else checkpoint.load_state(folder)


def state_on_the_way(out: Path, config: RunConfig, last: State) -> State:
    """`last`, or an earlier state if `config` gives the run another length or schedule.

    It is the newest whose steps had the rates that `config` has for them, so that the run is the
    same as if it had been started with `config`. Raises UserError if there is none.
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
    folder, _ = checkpoint.newest(out / CHECKPOINTS, min(alike, averaged))
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
