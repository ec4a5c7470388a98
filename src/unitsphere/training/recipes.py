"""Recipes: named configs, one TOML file each, under `unitsphere/recipes/<paper>/<name>.toml`.

A recipe may begin with `base = "<another recipe>"` and hold only what differs from it.
"""

import functools
import os
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from unitsphere.config import flatten, read_json, read_toml, to_dict
from unitsphere.errors import UserError
from unitsphere.training.config import RunConfig, one_length, read_config, run_config_type


def recipe_folder() -> Path:
    """The folder of the recipes that come with the package."""
    return Path(str(files("unitsphere"))) / "recipes"


@functools.cache
def recipe_names() -> tuple[str, ...]:
    """Every recipe that comes with the package, as `<paper>/<architecture>-<size>`, sorted."""
    folder = recipe_folder()
    return tuple(
        sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml"))
    )


GROUPS = ("quickstart", "unitsphere", "hybrid", "moe", "angpt2025", "ngpt2024", "normformer2021")
"""The order of the groups; others follow them."""


def grouped_recipes() -> dict[str, list[str]]:
    """Paper -> its recipes, by size and with the GPT first; its ablations come last."""
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(recipe_names(), key=_place):
        groups.setdefault(name.partition("/")[0], []).append(name)
    return groups


def is_ablation(name: str) -> bool:
    """Whether a recipe is a row of a paper's ablation table."""
    return "/ablations/" in name


def _place(name: str) -> tuple[bool, float, bool, str]:
    size = re.search(r"-([\d.]+)([mb])$", name)
    parameters = float(size[1]) * (1e3 if size[2] == "b" else 1) if size else 0.0
    return is_ablation(name), parameters, not name.partition("/")[2].startswith("gpt"), name


def first_sentence(name: str) -> str:
    """The first sentence of the comment at the top of a recipe that comes with the package."""
    comment = []
    for line in (recipe_folder() / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return re.split(r"\.(?: (?=[A-Z\"])|$)", " ".join(comment))[0]


def load_recipe(name: str | Path) -> RunConfig:
    """The config of a recipe: its name, a .toml file of one's own, a run folder or its config.json.

    What the file and its bases leave out has its default. Raises UserError for an unknown recipe,
    architecture or key (with the nearest match) and for a value of the wrong type.
    """
    name = str(name)
    if is_run(name):
        found = read_json(Path(name) / "config.json")
        if isinstance(found, Mapping) and "model_type" in found:
            raise UserError(
                f"{name} is an exported folder, which is not trained further: give its run's "
                "folder, or a recipe and --init RUN"
            )
        return saved_config(found, str(Path(name) / "config.json"))
    if name not in recipe_names() and name.endswith(".json"):
        return saved_config(read_json(Path(name)), name)
    table: dict[str, Any] = {}
    given: set[str] = set()  # by the user: not what a recipe of the package sets
    # Each base is a recipe too: an error names the file with the mistake.
    config = None
    for label, own in layers(name):
        table = merged(table, one_length(own, label))
        if label.removeprefix("recipe ") not in recipe_names():
            given |= set(flatten(own))
        config = config_from(table, label, given)
    assert config is not None  # a recipe is a layer
    return config


def token_budget(name: str) -> float | None:
    """A recipe's `train.tokens`, which its config holds as steps; None if it gives none."""
    if is_run(name) or (name not in recipe_names() and name.endswith(".json")):
        return None
    table: dict[str, Any] = {}
    for label, own in layers(name):
        table = merged(table, one_length(own, label))
    return table.get("train", {}).get("tokens")


def layers(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A recipe's TOML table and those of its bases, the last base first, each with its name.

    `base = "…"` names a recipe that comes with the package, or another .toml file by its path from
    this one. Raises UserError for bases that lead back to a recipe among them.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    seen: list[str] = []
    folder = Path()
    while True:
        if name in recipe_names():
            path, label = recipe_folder() / f"{name}.toml", f"recipe {name}"
        elif name.endswith(".toml"):
            path = folder / name
            label = str(path)
        else:
            where = f"{found[-1][0]}: base: " if found else ""
            raise UserError(f"{where}{no_recipe(name)}")
        place = os.path.realpath(path)
        if place in seen:
            chain = [known for known, _ in found[seen.index(place) :]]
            raise UserError(f"a recipe cannot be its own base: {' -> '.join([*chain, label])}")
        table = read_toml(path)
        base = table.pop("base", None)
        found.append((label, table))
        seen.append(place)
        if base is None:
            return found[::-1]
        if not isinstance(base, str):
            raise UserError(f"{label}: 'base' must be the name of a recipe, not {base!r}")
        name, folder = base, path.parent


def no_recipe(name: str) -> str:
    """What a name is that is not a recipe's."""
    path = Path(name)
    if path.is_dir():
        return f"{name} is a folder without config.json: give a run's folder, or a recipe"
    if path.is_file():
        return f"{name} is not a recipe: give a recipe first, and a text by --data.source {name}"
    names = recipe_names()
    short = {known.rpartition("/")[2]: known for known in reversed(names)}  # the first of a name
    near = [known for known in names if known.rpartition("/")[2] == name]
    near = near or get_close_matches(name, names, n=1)
    near = near or [short[one] for one in get_close_matches(name, short, n=1)]
    meant = " or ".join(f"'{one}'" for one in near)
    hint = f" (did you mean {meant}?)" if near else ""
    return f"unknown recipe '{name}'{hint}; `unitsphere recipes` lists them"


def no_run(path: Path) -> str:
    """What to say of a path that is not a run folder."""
    if path.as_posix() in recipe_names():
        return (
            f"{path} is a recipe, not a run folder: train it first by `unitsphere train {path} "
            f"--out runs/{path}`, and give that folder"
        )
    lacks = "it has no config.json" if path.exists() else "there is no such folder"
    lacks = "it is a file" if path.is_file() else lacks
    return f"{path} is not a run folder: {lacks}; give the folder that `unitsphere train` wrote"


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `change`; a table in both is merged in the same way."""
    table = dict(base)
    for key, value in change.items():
        own = table.get(key)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            value = merged(own, value)
        table[key] = value
    return table


def sources(name: str) -> dict[str, str]:
    """Dotted key -> the file that sets it last, for every key that a recipe or a base sets.

    A run folder or a .json file sets all of its keys itself.
    """
    if is_run(name) or (name not in recipe_names() and name.endswith(".json")):
        return dict.fromkeys(flatten(to_dict(load_recipe(name))), name)
    return {key: label for label, table in layers(name) for key in flatten(table)}


def is_run(name: str) -> bool:
    """Whether what is given as a recipe is a run folder. A recipe's own name is not one."""
    return name not in recipe_names() and (Path(name) / "config.json").is_file()


def config_from(data: Any, where: str, given: Collection[str] | None = None) -> RunConfig:
    """A `RunConfig` from the nested mapping of a TOML or JSON file; `where` names it in errors.

    given: the keys that the user has set, which optim.transfer leaves as they are; none: all.
    """
    if isinstance(data, Mapping) and {"data_sha256", "classes", "pool"} <= data.keys():
        raise UserError(
            f"{where} is of a fine-tuned classifier, which unitsphere.finetune.load_classifier "
            "loads: give the folder of the run that it started from"
        )
    if not isinstance(data, Mapping) or not isinstance(data.get("architecture"), str):
        raise UserError(f'{where}: the top level must hold architecture = "<name>"')
    try:
        return read_config(run_config_type(data["architecture"]), data, given)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


EARLIER = {"angpt": {"signed_alpha": True}}
"""Architecture -> the value that a model key had before the key existed, if not its default."""


def saved_config(data: Any, where: str) -> RunConfig:
    """The config in a run's or an export's JSON; one that was written earlier keeps its meaning.

    Raises UserError as `config_from` does.
    """
    if isinstance(data, Mapping) and isinstance(data.get("model"), Mapping):
        earlier = EARLIER.get(str(data.get("architecture")), {})
        data = {**data, "model": {**earlier, **data["model"]}}
    return config_from(data, where)
