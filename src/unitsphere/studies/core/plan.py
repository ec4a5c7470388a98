"""A study's runs before they are made: config, name and folder of each.

runs/<arm>/<tokens>/lr-<rate>-seed-<seed>          reported: on the validation split
runs/<arm>/tune-<tokens>/lr-<rate>-seed-<seed>     on the tuning split, see tune.py

Where more than a rate is tuned (points.py), point-<hash of its keys> is in the place of the rate.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unitsphere.config import flatten, to_dict
from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.studies.core.jobs import Job
from unitsphere.studies.core.spec import Study
from unitsphere.training.by_size import sizes
from unitsphere.training.config import RunConfig, read_config, steps_for
from unitsphere.training.load import last_state
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import check_same, config_in, resolve
from unitsphere.training.transfer import OWN_RATES, by_law, closed, opened

RUNS = "runs"
"""The run folders' place in the study's."""
LR = "optim.lr"

DEFAULTS: dict[str, object] = {"train.eval_every": 0, "train.sample_every": 0, "train.keep_last": 1}
"""What a study sets by default: only a run's end is of interest."""


@dataclass(frozen=True)
class Planned:
    """One run: a recipe with some keys set, and the run folder that is or will be its own.

    `name` is for people, its arm's first; `config` is what recipe and keys give, resolved.
    """

    name: str
    recipe: str
    keys: Mapping[str, object]
    folder: Path
    config: RunConfig

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.config.train.steps * self.config.train.batch_tokens

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.config.optim.lr

    @property
    def seed(self) -> int:
        """Of the weights' start and of the order of the data."""
        return self.config.train.seed

    def job(self) -> Job:
        """`unitsphere train` of it, as a user would type it."""
        keys = [word for key, value in self.keys.items() for word in (f"--{key}", str(value))]
        train = [sys.executable, "-m", "unitsphere", "train", self.recipe]
        return Job(
            name=self.name,
            argv=[*train, "--out", str(self.folder), *keys],
            out=self.folder,
            steps=self.config.train.steps,
            device=self.config.train.device,
            arm=self.name.partition(" ")[0],
        )


def plan(name: str, recipe: str, keys: Mapping[str, object], folder: Path) -> Planned:
    """A run of `recipe` with `keys` set over DEFAULTS, in `folder`.

    Raises UserError for an unknown recipe or key, values that do not go together, or a folder that
    holds a run of another config.
    """
    keys = {**DEFAULTS, **keys}
    return Planned(name, recipe, keys, folder, wanted(recipe, keys, folder))


def wanted(recipe: str, overrides: Mapping[str, Any], run: Path) -> RunConfig:
    """The config that `run` is to have: the recipe's with some keys set, resolved.

    Raises UserError for an unknown recipe or key, or if `run` holds a run of another config,
    or one that was scored on another part of the validation split.
    """
    try:
        saved = config_in(run)
    except UserError as error:
        raise UserError(f"{error}; or delete {run}, and it is trained again") from error
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


def is_finished(run: Path) -> bool:
    """Whether the newest complete checkpoint is the last: at the end, or where it diverged.

    A folder that cannot be read is not: training in it says why, and ends no other run.
    """
    try:
        saved = config_in(run)
        state = last_state(run) if saved is not None else None
    except UserError:
        return False
    return saved is not None and state is not None and state.over(saved.train.steps)


def arm_config(study: Study, arm: str) -> RunConfig:
    """An arm's config as recipe and keys give it, with the rate that tuning starts from."""
    spec = study.arms[arm]
    keys = study.keys(arm) | ({} if spec.lr is None else {LR: spec.lr})
    try:
        return with_overrides(load_recipe(spec.recipe), keys)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error


def of_length(config: RunConfig, tokens: int) -> RunConfig:
    """A config with the steps of a budget, and so the rate that optim.transfer has for it."""
    return with_overrides(config, {"train.steps": steps_for(tokens, config.train.batch_tokens)})


def own_rate(study: Study, arm: str, tokens: int) -> float:
    """An arm's rate at a budget, before any is tuned."""
    return float(of_length(arm_config(study, arm), tokens).optim.lr)


def at_budget(study: Study, arm: str, tokens: int) -> RunConfig:
    """An arm's config at a budget, resolved."""
    keys = run_keys(study, arm, tokens, own_rate(study, arm, tokens), study.seeds[0])
    return resolve(with_overrides(arm_config(study, arm), {**DEFAULTS, **keys}), None)


def final_run(
    out: Path, study: Study, arm: str, tokens: int, lr: float, seed: int, point: str | None = None
) -> Planned:
    """A run over the whole budget whose validation is reported; `point` names more than a rate."""
    name = f"{arm} {short(tokens)} {lr:g} #{seed}"
    folder = out / RUNS / arm / str(tokens) / f"{point or f'lr-{lr:g}'}-seed-{seed}"
    return plan(name, study.arms[arm].recipe, run_keys(study, arm, tokens, lr, seed), folder)


def tuning_run(
    out: Path,
    study: Study,
    arm: str,
    tokens: int,
    lr: float,
    seed: int,
    data: Path,
    point: str | None = None,
) -> Planned:
    """The same on `data`, a prepared folder with the tuning split."""
    name = f"{arm} {short(tokens)} {lr:g} #{seed} tune"
    folder = out / RUNS / arm / f"tune-{tokens}" / f"{point or f'lr-{lr:g}'}-seed-{seed}"
    changed: dict[str, object] = {"data.source": str(data)}
    if arm_config(study, arm).data.validation is not None:
        changed["data.validation"] = None
    keys = run_keys(study, arm, tokens, lr, seed) | changed
    return plan(name, study.arms[arm].recipe, keys, folder)


def to_come(study: Study, places: Iterable[tuple[str, int]], runs: int) -> list[Job]:
    """Runs of arms at budgets before their rate is known, `runs` of each, for the time left."""
    found = []
    for arm, tokens in places:
        steps = steps_for(tokens, arm_config(study, arm).train.batch_tokens)
        found += [Job(f"{arm} {short(tokens)}", (), Path(), steps=steps, arm=arm)] * runs
    return found


def run_keys(study: Study, arm: str, tokens: int, lr: float, seed: int) -> dict[str, object]:
    """What a run sets in its arm's recipe."""
    config = of_length(arm_config(study, arm), tokens)
    own = {"train.steps": config.train.steps, "train.seed": seed}
    return {**study.keys(arm), **own, **rate_keys(config, lr)}


def rate_keys(config: RunConfig, lr: float) -> dict[str, object]:
    """The keys that set the peak rate: `optim.adam_lr` keeps its ratio to `optim.lr`."""
    adam, own = config.optim.adam_lr, config.optim.lr
    if adam is None or lr == own:
        return {LR: lr}
    return {LR: lr, "optim.adam_lr": float(f"{adam * lr / own:.6g}")}


def transferred(study: Study, arm: str, tuned_at: int, tokens: int) -> dict[str, float]:
    """The rates of an arm at a budget, by the law from its rates at another; four digits of each.

    Raises UserError for an arm that the law does not cover.
    """
    config = closed(of_length(arm_config(study, arm), tuned_at))  # with a law of its own, too
    width, depth = sizes(config.model)
    optim = config.optim
    base = {
        "name": optim.name,
        "width": width,
        "depth": depth,
        "tokens": float(config.train.steps * config.train.batch_tokens),
        "batch_tokens": config.train.batch_tokens,
        "lr": float(optim.lr),
        "adam_lr": optim.adam_lr,
        # A recipe's own base may have others, of another run than the one that was tuned here.
        **{f"rates.{group}": getattr(optim.rates, group) for group in OWN_RATES},
    }
    keys = {f"optim.base.{key}": value for key, value in base.items()}
    law = {"optim.transfer": study.tune.transfer}
    # Open, so that the decay is that of the law's rate, which the run will have.
    found = by_law(opened(of_length(with_overrides(config, law | keys), tokens), given=()))
    own = flatten(to_dict(config))
    return {
        key: float(f"{value:.4g}")
        for key, value in found.items()
        if key.startswith("optim.") and value is not None and (key == LR or value != own[key])
    }
