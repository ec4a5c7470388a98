"""A study's runs before they are made: what tells one from the others, and its folder."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unitsphere.studies.executor import Job
from unitsphere.studies.runs import train_job, wanted
from unitsphere.training.config import RunConfig

DEFAULTS: dict[str, object] = {"train.eval_every": 0, "train.sample_every": 0, "train.keep_last": 1}
"""What a study sets unless it is told otherwise: only a run's end is of interest."""


@dataclass(frozen=True)
class Planned:
    """One run: a recipe with some keys set, and the run folder that is or will be its own.

    `name` is for people, its arm's first; `config` is what comes of recipe and keys, everything
    decided.
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
        """`unitsphere train` of it."""
        job = train_job(self.name, self.recipe, self.keys, self.folder, self.config.train.steps)
        arm = self.name.partition(" ")[0]
        return dataclasses.replace(job, device=self.config.train.device, arm=arm)


def plan(name: str, recipe: str, keys: Mapping[str, object], folder: Path) -> Planned:
    """A run of `recipe` with `keys` set over DEFAULTS, in `folder`.

    Raises UserError for an unknown recipe or key, values that do not go together, or a folder that
    holds a run of another config.
    """
    keys = {**DEFAULTS, **keys}
    return Planned(name, recipe, keys, folder, wanted(recipe, keys, folder))


def steps_for(tokens: int, batch_tokens: int) -> int:
    """The number of updates that comes nearest to a budget of training tokens; at least 1."""
    return max(1, round(tokens / batch_tokens))
