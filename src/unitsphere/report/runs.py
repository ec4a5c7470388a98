"""A run folder as it is, even incomplete: for the page, never for training."""

import dataclasses
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from unitsphere.config import flatten, read_json
from unitsphere.data.prepare import lost_share
from unitsphere.errors import UserError
from unitsphere.inspection.live import PREFIX
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import CONFIG, ENVIRONMENT
from unitsphere.training.forecast import ModelSize, size_of
from unitsphere.training.guard import divergence
from unitsphere.training.load import is_exported
from unitsphere.training.log import METRICS, read_metrics, read_samples
from unitsphere.training.recipes import config_from

Json = Mapping[str, Any]

Folders = Path | Sequence[Path]
"""A run, a study or a folder of runs; or several."""

MOST_NAMED = 2
"""Data sets, and tokenizers, that the first screen names."""
LONG = 48
"""Characters of a path that is shown in full."""


@dataclass(frozen=True)
class Run:
    """A run: the name it has on the page, the arm that it belongs to, and its folder."""

    name: str
    arm: str
    folder: Path

    @cached_property
    def settings(self) -> Json:
        """config.json; empty if there is none."""
        return document(self.folder / CONFIG)

    @cached_property
    def environment(self) -> Json:
        """environment.json; empty if there is none."""
        return document(self.folder / ENVIRONMENT)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl; none if there is none."""
        return read_metrics(self.folder)

    @cached_property
    def config(self) -> RunConfig | None:
        """The config, if this version of the package reads it."""
        try:
            return config_from(self.settings, str(self.folder))
        except UserError:  # of another version; the page shows what is written
            return None

    @cached_property
    def size(self) -> ModelSize | None:
        """Counted without allocating the model; None without a config that makes one."""
        config = self.config
        if config is None:
            return None
        try:
            return size_of(config)
        except UserError:  # of a vocabulary that is not known yet
            return None

    @cached_property
    def samples(self) -> list[tuple[int, str]]:
        """The texts of samples.txt with their steps, oldest first."""
        return read_samples(self.folder)

    @property
    def steps(self) -> int | None:
        """The steps that it is to make, if that is known."""
        steps = self.settings.get("train", {}).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def step(self) -> int:
        """The last step on record; 0 before the first."""
        return self.records[-1]["step"] if self.records else 0

    @property
    def done(self) -> bool:
        """Whether it came to its last step, or ended where it diverged."""
        return self.diverged or (self.steps is not None and self.step >= self.steps)

    @property
    def diverged(self) -> bool:
        """Whether it ended because its loss diverged, or a study notes that it did."""
        ended = bool(self.records) and "diverged" in self.records[-1]
        return ended or divergence(self.folder).exists()

    def last(self, key: str) -> float | None:
        """The last value of a key in the records, or None."""
        return self.last_with(key).get(key)

    def last_with(self, key: str) -> Json:
        """The last record that has a number under a key; empty if none has."""
        return next((r for r in reversed(self.records) if is_number(r.get(key))), {})

    @property
    def command(self) -> str:
        """The line that trained it, the program's path left out; empty if it is not known."""
        words = self.environment.get("command")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            return ""
        return shlex.join(["unitsphere", *words[1:]])


def listed(folders: Folders) -> list[Path]:
    """One folder or several as a list."""
    return [folders] if isinstance(folders, Path) else list(folders)


def document(path: Path) -> Json:
    """A JSON object from a file; empty if the file is missing, torn or another thing."""
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except UserError:  # being written, or not ours
        return {}
    return found if isinstance(found, dict) else {}


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def live_values(record: Json) -> Iterator[tuple[str, str, str, float]]:
    """Probe, series, label and value of each live figure of a record.

    Keys that do not name one (`probe/<probe>/<series>/<label>`) are left out.
    """
    for key, value in record.items():
        parts = key.split("/")
        if key.startswith(PREFIX) and len(parts) == 4 and is_number(value):
            yield parts[1], parts[2], parts[3], value


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training run, or what is left of one; an exported model does not."""
    config = document(folder / CONFIG)
    return (folder / METRICS).is_file() or ("architecture" in config and not is_exported(config))


def name_of(folder: Path) -> str:
    """The folder's name; of a study's run its place in the study: arm, budget, folder."""
    for study in folder.parents:
        if (study / "study.toml").is_file() and folder.is_relative_to(study / "runs"):
            return " ".join(folder.relative_to(study / "runs").parts)
    return folder.name


def name_in(study: Path, run: Path) -> str:
    """A run's path within its study."""
    return run.relative_to(study).as_posix().removeprefix("runs/")


def runs_below(folder: Path) -> list[Path]:
    """The run folders below a folder, at any depth, sorted."""
    found = {path.parent for path in files_below(folder, METRICS, CONFIG)} - {folder}
    return sorted(path for path in found if is_run(path))


def files_below(folder: Path, *patterns: str) -> Iterator[Path]:
    """The files below a folder whose names match a pattern.

    Unlike Path.rglob it bears folders that are deleted meanwhile, as old checkpoints are.
    """
    for place, _, names in os.walk(folder):
        matching = (name for name in names if any(fnmatch(name, each) for each in patterns))
        yield from (Path(place, name) for name in matching)


def runs_of_arms(arms: Iterable[str], folder: Path, words: int) -> list[Run]:
    """The runs of a study whose folders are named by the arm and as many words: `ngpt.d64-l4`."""
    return [
        Run(name_in(folder, path), arm, path)
        for arm in arms
        for place in sorted(folder.glob("runs/*"))
        if place.name.rsplit(".", words)[:-words] == [arm]
        for path in runs_below(place)
    ]


def in_arms(named: Sequence[tuple[str, Path]]) -> list[Run]:
    """Runs by (name, folder): those whose configs differ only in the seed are one arm.

    Every other run is a separate arm with the run's name.
    """
    runs = [Run(name, name, folder) for name, folder in named]
    arms: dict[str, str] = {}
    for several in alike(runs, "train.seed"):
        own = [run.name for run in several]
        name = common_name(own)
        others = {*arms.values(), *(run.name for run in runs if run.name not in own)}
        arms |= dict.fromkeys(own, name if name and name not in others else own[0])
    return [dataclasses.replace(run, arm=arms[run.name]) for run in runs]


def common_name(names: Sequence[str]) -> str:
    """What names have in common at their start, without what is left of a seed or a number.

    >>> common_name(["ngpt/seed-0", "ngpt/seed-1"]), common_name(["gpt-120", "gpt-1240"])
    ('ngpt', 'gpt')
    """
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in shared)
    if common in names:
        return common
    return re.sub(r"[\W_]*(seed|(?<=[\W_])s|\d*)[\W_]*$", "", common)


def alike(runs: Sequence[Run], *keys: str) -> list[list[Run]]:
    """The runs in groups whose configs differ only in some keys; without a config a run is one."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        kept = {key: value for key, value in flatten(run.settings).items() if key not in keys}
        name = json.dumps(kept, sort_keys=True) if kept else run.name
        groups.setdefault(name, []).append(run)
    return list(groups.values())


def data_facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The data sets and tokenizers that the runs' configs name, for the first screen."""
    found = []
    for name, read in (("data", source_of), ("tokenizer", tokenizer_of)):
        values = list(dict.fromkeys(value for run in runs if (value := read(run))))
        if values:
            few = ", ".join(shortened(value) for value in values[:MOST_NAMED])
            more = len(values) - MOST_NAMED
            found.append((name, f"{few} and {more} more" if more > 0 else few))
    return found


def lost_text(runs: Sequence[Run]) -> list[str]:
    """A line about the runs whose tokenizer loses text; none if there are none."""
    lossy = {run.name: lost for run in runs if (lost := run.last("val_text_lost"))}
    if not lossy:
        return []
    return [f"The tokenizer of {', '.join(lossy)} loses text: {lost_share(max(lossy.values()))}."]


def source_of(run: Run) -> str:
    """The source of a run's data; empty if it is not known."""
    return value_text(run.settings.get("data", {}).get("source") or "")


def tokenizer_of(run: Run) -> str:
    """A run's tokenizer, or how many entries it has where the config names none."""
    entries = run.settings.get("model", {}).get("vocab_size")
    named = run.settings.get("data", {}).get("tokenizer")
    return value_text(named or (f"{entries:,} entries" if isinstance(entries, int) else ""))


def shortened(source: str) -> str:
    """A long path by its last parts."""
    return source if len(source) <= LONG else f"…/{'/'.join(Path(source).parts[-2:])}"


def by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each arm, arms in the order of their first run."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


def found_in(study: Path, told: str) -> Path | None:
    """A run of a study by its recorded path, wherever the study's folder is now.

    Of a copied study it is the copy's: the first one may have been trained again.
    """
    parts = Path(told).parts
    places = [*(study.joinpath(*parts[start:]) for start in range(1, len(parts))), Path(told)]
    return next((place for place in places if is_run(place)), None)


def value_text(value: object) -> str:
    """A JSON value in few characters, as a config shows it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
