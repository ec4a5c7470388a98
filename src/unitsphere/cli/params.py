"""`unitsphere params`: exact parameter counts without allocating a model, and resolved recipes."""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse
from unitsphere.cli.settings import Settings, read_settings, split_recipe
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.config import RunConfig


@dataclasses.dataclass(frozen=True)
class Params:
    """Exact parameter counts of recipes, without allocating the models.

    With --show: all settings of one recipe as `unitsphere train` would use them,
    each with its source: a default, a recipe's file (its own, or a base's),
    the command line, or derived from other settings and this machine. And how each
    kind of parameter is trained: by which optimizer, at which peak rate.

    examples:
      unitsphere params
      unitsphere params angpt2025/gpt-plus-0.5b angpt2025/ngpt-0.5b --json
      unitsphere params quickstart/ngpt --show --model.d_model 256
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="[RECIPE …]")] = ()
    """recipes, by name or by the path of a TOML file; by default all that are shipped, in a table
    without the papers' ablations"""
    show: bool = False
    """print one recipe's settings and their sources; takes --section.key value, as train does"""
    json: bool = False
    """print one JSON document instead of a table"""


@dataclasses.dataclass(frozen=True)
class Show:
    """Print the settings of RECIPE and their sources, as `unitsphere train` would use them.

    example:
      unitsphere params RECIPE --show --model.d_model 256
    """

    show: bool = False
    """print the settings instead of the count"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Count, or show one recipe's settings, and print."""
    name, rest = split_recipe(argv, Show)
    if name is not None and asks_to_show(rest):
        return show(name, rest)
    changed = next((word for word in rest if word.startswith("--") and "." in word), None)
    if name is not None and changed:
        raise UserError(
            f"{changed.partition('=')[0]} needs --show: unitsphere params {name} --show"
        )
    args = parse(Params, argv, "params")
    if args.show:
        raise UserError("params --show needs a recipe, such as quickstart/ngpt")
    from unitsphere.training.recipes import grouped_recipes, is_ablation, recipe_names

    if args.json:
        print_json([count(name) for name in args.recipes or recipe_names()])
        return 0
    listed = [name for names in grouped_recipes().values() for name in names]
    folded = 0 if args.recipes else sum(map(is_ablation, listed))
    names = args.recipes or [name for name in listed if not is_ablation(name)]
    counts = [count(name) for name in names]
    columns = ("recipe", "parameters", "active", "vocabulary", "d_model", "layers", "heads")
    keys = ("parameters", "active_parameters", "vocab_size", "d_model", "n_layers", "n_heads")
    rows = [[c["recipe"], *(f"{c[key]:,}" for key in keys)] for c in counts]
    print_table(columns, rows)
    if folded:
        print(f"and {folded} ablations: unitsphere recipes --ablations lists them")
    return 0


def asks_to_show(words: list[str]) -> bool:
    """Whether --show is among the words, and not said to be False."""
    for word, after in itertools.pairwise([*words, ""]):
        option, _, value = word.partition("=")
        if option == "--show":
            return (value or after).lower() != "false"
    return False


def count(name: str) -> dict[str, Any]:
    """A recipe's parameters, all and by role, from shapes only (the meta device)."""
    from unitsphere.training.recipes import load_recipe

    config = load_recipe(name)
    return {"recipe": name} | counted(config)


def counted(config: "RunConfig") -> dict[str, Any]:
    """The parameters of a config's model, all and by role, and its shape."""
    from unitsphere.models.experts import active_parameters
    from unitsphere.models.registry import count_by_role
    from unitsphere.training.forecast import shapes_of

    config = with_vocabulary(config)
    model = shapes_of(config)
    by_role = count_by_role(model)
    shape = ("d_model", "n_layers", "n_heads", "vocab_size")
    return {
        "architecture": config.architecture,
        "objective": config.objective,
        "parameters": sum(by_role.values()),
        "active_parameters": active_parameters(model),
        "by_role": by_role,
        **{key: getattr(config.model, key) for key in shape},
    }


def with_vocabulary(config: "RunConfig") -> "RunConfig":
    """The config with the size of its tokenizer's vocabulary, where it names none."""
    from unitsphere.training.resolve import model_vocabulary

    model = dataclasses.replace(config.model, vocab_size=model_vocabulary(config))
    return dataclasses.replace(config, model=model)


def show(name: str, argv: list[str]) -> int:
    """Print every setting of a recipe and where its value comes from, and what follows of them."""
    from unitsphere.training.optim.roles import SHOWN
    from unitsphere.training.optim.schedule import area
    from unitsphere.training.recipes import load_recipe
    from unitsphere.training.transfer import advice, reason

    settings = read_settings("params --show", name, load_recipe(name), argv, Show)
    rows = list(sourced(name, settings))
    counts = {"recipe": name} | counted(settings.config)
    roles = trained_roles(settings.config)
    mean = area(settings.config.schedule, settings.config.train.steps)
    if settings.own.json:
        print_json(counts | {"schedule_area": mean, "roles": roles, "settings": rows})
        return 0
    cells = [[str(cell) for cell in row.values()] for row in rows]
    print_table(("key", "value", "source"), cells, left=3)
    print()
    keys = ("role", "parameters", "optimizer", "lr", *SHOWN)
    print_table(keys, [[shown(row.get(key)) for key in keys] for row in roles])
    active, total = counts["active_parameters"], counts["parameters"]
    used = "" if active == total else f", {active:,} of them active: what a token uses"
    print(f"\n{total:,} parameters{used}")
    print(f"mean learning rate {mean:.4f} of its peak (schedule.area)")
    if why := reason(settings.config) or advice(settings.config):
        print(why)
    return 0


def trained_roles(config: "RunConfig") -> list[dict[str, Any]]:
    """Which optimizer trains each kind of parameter, and with which numbers."""
    from unitsphere.training.forecast import shapes_of
    from unitsphere.training.optim import build_optimizer
    from unitsphere.training.optim.roles import trained

    model = shapes_of(with_vocabulary(config))
    return trained(model, build_optimizer(model, config.optim))


def shown(value: Any) -> str:
    """A cell of the table of roles."""
    if isinstance(value, tuple):
        return ", ".join(f"{number:g}" for number in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else value or ""


def sourced(name: str, settings: Settings) -> list[dict[str, Any]]:
    """Each key with its resolved value and its source.

    "derived" values depend on other settings or on this machine: sizes in forms such as "sqrt(d)",
    the vocabulary, precision "auto", absolute paths, and what optim.transfer sets.
    """
    from unitsphere.config import flatten, to_dict
    from unitsphere.training.by_size import BySize
    from unitsphere.training.recipes import sources
    from unitsphere.training.resolve import resolve
    from unitsphere.training.transfer import closed, open_numbers

    config = settings.config
    asked, files = flatten(to_dict(closed(config))), sources(name)
    by_law = {} if config.optim.transfer == "none" else open_numbers(config)
    found = []
    for key, value in flatten(to_dict(resolve(config, None))).items():
        default = f"default of {config.architecture}" if key.startswith("model.") else "default"
        source = "command line" if key in settings.given else files.get(key, default)
        if key in by_law:
            source = f"derived: optim.transfer {config.optim.transfer} ({source})"
        elif isinstance(asked[key], BySize):
            source = f'derived: "{asked[key].form}" ({source})'
        elif asked[key] != value:
            source = f"derived ({source})"
        found.append({"key": key, "value": value, "source": source})
    return found
