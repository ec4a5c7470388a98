"""Recipes: named configs, one TOML file each, under `unitsphere/recipes/<paper>/<name>.toml`."""

import functools
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


def load_recipe(name: str | Path) -> RunConfig:
    """The config of a recipe: its name, a .toml file of one's own, or a run's config.json.

    What the file leaves out has its default. Raises UserError for an unknown recipe,
    architecture or key (with the nearest match) and for a value of the wrong type.
    """
    name = str(name)
    if name in recipe_names():
        path = recipe_folder() / f"{name}.toml"
        return config_from(read_toml(path), f"recipe {name}")
    if name.endswith(".toml"):
        return config_from(read_toml(Path(name)), name)
    if name.endswith(".json"):
        return saved_config(read_json(Path(name)), name)
    raise UserError(f"unknown recipe '{name}'{did_you_mean(name, recipe_names())}")


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
