"""Recipes: named configs, one TOML file each, under `unitsphere/recipes/<paper>/<name>.toml`."""

import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from unitsphere.config import did_you_mean, read_json, read_toml
from unitsphere.errors import UserError
from unitsphere.training.config import RunConfig, read_config, run_config_type


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


GROUPS = ("quickstart", "unitsphere", "angpt2025", "ngpt2024", "normformer2021")
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
    """What a recipe that comes with the package says of itself first, in the comment on top."""
    comment = []
    for line in (recipe_folder() / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return re.split(r"\.(?: (?=[A-Z\"])|$)", " ".join(comment))[0]


def load_recipe(name: str | Path) -> RunConfig:
    """The config of a recipe: its name, a .toml file of one's own, a run folder or its config.json.

    What the file leaves out has its default. Raises UserError for an unknown recipe,
    architecture or key (with the nearest match) and for a value of the wrong type.
    """
    name = str(name)
    if name in recipe_names():
        path = recipe_folder() / f"{name}.toml"
        return config_from(read_toml(path), f"recipe {name}")
    if is_run(name):
        return load_recipe(Path(name) / "config.json")
    if name.endswith(".toml"):
        return config_from(read_toml(Path(name)), name)
    if name.endswith(".json"):
        return saved_config(read_json(Path(name)), name)
    raise UserError(f"unknown recipe '{name}'{did_you_mean(name, recipe_names())}")


def is_run(name: str) -> bool:
    """Whether what is given as a recipe is a run folder. A recipe's own name is not one."""
    return name not in recipe_names() and (Path(name) / "config.json").is_file()


def config_from(data: Any, where: str) -> RunConfig:
    """A `RunConfig` from the nested mapping of a TOML or JSON file; `where` names it in errors."""
    if not isinstance(data, Mapping) or not isinstance(data.get("architecture"), str):
        raise UserError(f'{where}: the top level must hold architecture = "<name>"')
    try:
        return read_config(run_config_type(data["architecture"]), data)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


EARLIER = {"angpt": {"signed_alpha": True}}
"""Architecture -> what a model's key was before it existed, where its default is another."""


def saved_config(data: Any, where: str) -> RunConfig:
    """The config in a run's or an export's JSON; one written earlier keeps its meaning.

    Raises UserError as `config_from` does.
    """
    if isinstance(data, Mapping) and isinstance(data.get("model"), Mapping):
        earlier = EARLIER.get(str(data.get("architecture")), {})
        data = {**data, "model": {**earlier, **data["model"]}}
    return config_from(data, where)
