"""A study's runs: what each is to be, whether it is finished, and the job that trains it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.studies.executor import Job
from unitsphere.training.config import RunConfig, read_config
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import check_same, resolve, saved_config
from unitsphere.training.run import last_state


def wanted(recipe: str, overrides: Mapping[str, Any], run: Path) -> RunConfig:
    """The config that `run` is to have: the recipe's with some keys set, everything decided.

    Raises UserError for an unknown recipe or key, or if `run` holds a run of another config,
    or one that was scored on another part of the validation split.
    """
    saved = saved_config(run) if run.exists() else None
    config = resolve(with_overrides(load_recipe(recipe), overrides), saved)
    if saved is not None:
        check_same(run, saved, config)
        if saved.train.eval_tokens != config.train.eval_tokens:
            raise UserError(
                f"{run} was scored with train.eval_tokens {saved.train.eval_tokens}, not "
                f"{config.train.eval_tokens}: give that again, or delete it"
            )
    return config


def with_overrides(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The config with some keys ("train.steps") set; a `UserError` for an unknown key."""
    data = to_dict(config)
    for key, value in overrides.items():
        *sections, last = key.split(".")
        table = data
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise UserError(f"unknown key '{key}': '{section}' has no keys of its own")
        table[last] = value
    return read_config(type(config), data)


def train_job(name: str, recipe: str, overrides: Mapping[str, Any], run: Path, steps: int) -> Job:
    """`unitsphere train` of a recipe, as a user would type it, as a job."""
    flags = [word for key, value in overrides.items() for word in (f"--{key}", str(value))]
    argv = [sys.executable, "-m", "unitsphere", "train", recipe, "--out", str(run), *flags]
    device = str(overrides.get("train.device", "auto"))
    return Job(name=name, argv=argv, out=run, steps=steps, device=device)


def is_finished(run: Path) -> bool:
    """Whether the newest complete checkpoint is the last: at the end, or where it diverged.

    A folder that cannot be read is not: training in it says why, and ends no other run.
    """
    try:
        saved = saved_config(run) if run.exists() else None
        state = last_state(run) if saved is not None else None
    except UserError:
        return False
    return saved is not None and state is not None and state.over(saved.train.steps)
