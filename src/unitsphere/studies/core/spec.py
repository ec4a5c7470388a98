"""What a study asks, from its TOML: arms, seeds, tuning, execution. Each study adds its own keys.

seeds = [0, 1, 2]
[arms]                                   # a recipe, or a table
gpt-plus = "quickstart/gpt-plus"
ngpt = { recipe = "quickstart/ngpt", set = { "model.alpha.init" = 0.1 }, lr = 2e-2 }
[set]                                    # keys of every arm
"data.source" = "wiki.jsonl"
[tune]
points = 5
[run]                                    # how it is executed; may change when it resumes
workers = 2
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from unitsphere.config import check_seed, did_you_mean, field_types, flatten, from_dict, read_toml
from unitsphere.errors import UserError
from unitsphere.studies.core.cluster import Resources
from unitsphere.training.by_size import Transfer

S = TypeVar("S", bound="Study")

OWN_KEYS = {
    "train.steps": "the study's budgets decide it",
    "train.tokens": "the study's budgets decide it",
    "train.seed": "it belongs in `seeds`",
    "optim.lr": "it belongs in `lr` of an arm",
}
"""Keys that a study sets itself, and what to use instead."""


SEEDS = [0, 1, 2]
"""Those of the reported runs unless a study names others."""


@dataclass(frozen=True)
class ArmSpec:
    """What an arm trains: a recipe, keys set in it, and perhaps a rate in place of the recipe's."""

    recipe: str
    set: dict[str, object] = field(default_factory=dict)
    lr: float | None = None
    """peak learning rate; where rates are tuned, the middle of the grid"""


@dataclass(frozen=True)
class Tune:
    """How each arm's learning rate is tuned: on documents that are not the reported ones.

    With `keys` any keys of each arm are tuned in its place, by as many points for each arm.
    """

    ratio: float = 2.0
    """each rate of the grid divided by the one below it"""
    points: int = 3
    """rates to begin with, around the arm's own; 1: that one is taken as it is"""
    growths: int = 4
    """rates that are added at most, while the best is at an edge of the grid"""
    seeds: list[int] = field(default_factory=lambda: [100])
    """of the tuning runs; the rate of the lowest mean loss is taken"""
    budgets: list[int] = field(default_factory=list)
    """budgets at which rates are tuned, the others take the nearest one's; none: at each"""
    fraction: float = 0.05
    """share of the training documents that becomes the split that rates are tuned on"""
    keys: dict[str, dict[str, object]] = field(default_factory=dict)
    """compare: arm -> key -> a list of values, or a range (core/space.py); a key that ends with .*
    stands for all below it, which then have one value"""
    method: Literal["coordinate", "optuna"] = "coordinate"
    """with keys; coordinate: from the arm's own values, one key after the other; optuna: TPE"""
    trials: int | None = None
    """with keys: points of each arm at each budget that is tuned at"""
    transfer: Transfer = "none"
    """with keys and budgets: the law (optim.transfer) by which the other budgets get their rates
    from those of the nearest; none: they are taken as they are"""

    def __post_init__(self) -> None:
        if not 1 < self.ratio < 1e3:
            raise UserError(f"tune.ratio must be a number above 1: {self.ratio}")
        if self.points < 1 or self.growths < 0:
            raise UserError(
                f"tune.points must be at least 1 and tune.growths at least 0: {self.points} and "
                f"{self.growths}"
            )
        if not 0 < self.fraction < 1:
            raise UserError(f"tune.fraction must be above 0 and below 1: {self.fraction}")
        check_seeds("tune.seeds", self.seeds)
        if self.budgets:
            check_numbers("tune.budgets", self.budgets, least=1)
        self.check_keys()

    def check_keys(self) -> None:
        """Raise UserError unless `keys` and what belongs to them go together."""
        if self.transfer != "none" and not (self.keys and self.budgets):
            raise UserError(
                "tune.transfer carries rates from tune.budgets to the other budgets: set tune.keys "
                "and tune.budgets, or leave it out"
            )
        if not self.keys and (self.trials is not None or self.method != "coordinate"):
            raise UserError("tune.trials and tune.method are for tune.keys: name the keys to tune")
        if self.keys and not (self.trials and self.trials > 0):
            raise UserError("tune.keys needs tune.trials, the points of each arm: at least 1")
        grid = (self.ratio, self.points, self.growths)
        if self.keys and grid != (Tune.ratio, Tune.points, Tune.growths):
            raise UserError(
                "tune.ratio, tune.points and tune.growths are not for tune.keys: list the rates "
                'under "optim.lr" of each arm'
            )


@dataclass(frozen=True)
class Execution:
    """How a study is executed. It may change when a study resumes."""

    executor: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: arrays of a cluster"""
    workers: int | None = None
    """runs at a time; none: one per core or GPU, in a cluster all"""
    slurm: Resources = field(default_factory=Resources)
    """what each run is given there"""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError(f"run.workers must be at least 1: {self.workers}")
        if self.executor == "local" and self.slurm != Resources():
            raise UserError('run.slurm is for run.executor = "slurm": set it, or leave it out')


@dataclass(frozen=True, kw_only=True)
class Study:
    """What all studies share."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("run.",)
    """how the keys begin that may change when a study resumes: they change none of its runs"""
    TUNES_KEYS: ClassVar[bool] = False
    """whether it takes `tune.keys`"""

    arms: dict[str, ArmSpec]
    set: dict[str, object] = field(default_factory=dict)
    """keys set in every arm; an arm's own come after them"""
    seeds: list[int] = field(default_factory=lambda: [*SEEDS])
    tune: Tune = field(default_factory=Tune)
    run: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        if not self.arms:
            raise UserError("'arms' must name at least one arm")
        for name in self.arms:
            if not re.fullmatch(r"\w[\w.+-]*", name, re.ASCII):
                raise UserError(
                    f"the arm {name!r} must have a name of letters, digits, '-', '.', '+' and '_'"
                )
        check_seeds("seeds", self.seeds)
        if self.tune.keys and not self.TUNES_KEYS:
            raise UserError("tune.keys is for compare: leave it out")

    def keys(self, arm: str) -> dict[str, object]:
        """What an arm sets in its recipe, those of all arms first."""
        return {**self.set, **self.arms[arm].set}


@dataclass(frozen=True, kw_only=True)
class Comparing(Study):
    """A study whose arms are measured against each other."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = (*Study.CHANGEABLE, "allow:")

    allow: list[str] = field(default_factory=list)
    """names of what would be refused as unfair (studies.core.fairness), to have it flagged
    instead"""


def check_seeds(name: str, seeds: Sequence[int]) -> None:
    """Raise UserError unless there is a seed, each can be one, and none comes twice."""
    check_numbers(name, seeds, least=0)
    for seed in seeds:
        check_seed(name, seed)


def check_numbers(name: str, numbers: Sequence[int], least: int) -> None:
    """Raise UserError unless there is a number, each is at least `least`, and none comes twice."""
    if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
        raise UserError(
            f"'{name}' must be one or more different whole numbers from {least} on, not {numbers}"
        )


def load_study(kind: type[S], path: Path) -> S:
    """The study in a TOML file; a `UserError` names the file and what is wrong with it."""
    table = read_toml(path)
    try:
        return study_from(kind, table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def study_from(kind: type[S], table: Mapping[str, object]) -> S:
    """A study of a kind from its table; keys to set may be dotted or nested."""
    for key in table:
        if key not in field_types(kind):
            raise UserError(f"unknown key '{key}'{did_you_mean(key, field_types(kind))}")
    if "arms" not in table:
        raise UserError("'arms' is missing")
    arms = as_table(table["arms"], "arms")
    changed: dict[str, object] = {"arms": {name: _arm(name, arm) for name, arm in arms.items()}}
    if "set" in table:
        changed["set"] = _settings(table["set"], "set")
    return from_dict(kind, {**table, **changed})


def _arm(name: str, arm: object) -> dict[str, object]:
    if isinstance(arm, str):
        return {"recipe": arm}
    table, where = as_table(arm, f"arms.{name}"), f"arms.{name}.set"
    if "recipe" not in table:
        raise UserError(f"'arms.{name}' names no recipe")
    return {**table, "set": _settings(table["set"], where)} if "set" in table else {**table}


def _settings(table: object, where: str) -> dict[str, object]:
    flat = flatten(as_table(table, where))
    for key, value in flat.items():
        if not isinstance(value, bool | int | float | str):
            raise UserError(
                f"'{where}.{key}' must be a number, a string, true or false, not {value!r}"
            )
        if key in OWN_KEYS:
            raise UserError(f"'{where}.{key}' cannot be set: {OWN_KEYS[key]}")
    return flat


def as_table(value: object, where: str) -> Mapping[str, object]:
    """The value, if it is a table; a `UserError` says where it stands."""
    if not isinstance(value, Mapping):
        raise UserError(f"'{where}' must be a table, not {value!r}")
    return value


def toml_text(table: Mapping[str, object], prefix: str = "") -> str:
    """A nested table as TOML: its values, then its tables, in their order; None is left out.

    Reading it gives an equal table. Raises UserError for a value that is neither a scalar, a list
    of scalars nor a table.
    """
    values, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = prefix + _key(key)
            inner = toml_text(value, name + ".")
            tables.append(f"\n[{name}]\n{inner}")
        elif value is not None:
            values.append(f"{_key(key)} = {_value(key, value)}\n")
    return "".join(values + tables)


def _key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isascii() and bare.isalnum() else _string(key)


def _value(key: str, value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(key, item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    raise UserError(f"'{key}' must be a number, a string, true or false, not {value!r}")


def _string(text: str) -> str:
    # JSON's strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
