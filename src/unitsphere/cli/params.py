"""`unitsphere params`: exact parameter counts, without allocating a model."""

import dataclasses
from typing import Annotated, Any

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse


@dataclasses.dataclass(frozen=True)
class Params:
    """Exact parameter counts of recipes, without allocating the models.

    examples:
      unitsphere params
      unitsphere params angpt2025/gpt-plus-0.5b angpt2025/ngpt-0.5b --json
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="[RECIPE …]")] = ()
    """recipes, by name or by the path of a TOML file; none: all that are shipped, in a table
    without the papers' ablations"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Count and print."""
    args = parse(Params, argv, "params")
    from unitsphere.training.recipes import grouped_recipes, is_ablation, recipe_names

    if args.json:
        print_json([count(name) for name in args.recipes or recipe_names()])
        return 0
    listed = [name for names in grouped_recipes().values() for name in names]
    folded = 0 if args.recipes else sum(map(is_ablation, listed))
    names = args.recipes or [name for name in listed if not is_ablation(name)]
    counts = [count(name) for name in names]
    columns = ("recipe", "parameters", "vocabulary", "d_model", "layers", "heads")
    keys = ("parameters", "vocab_size", "d_model", "n_layers", "n_heads")
    rows = [[c["recipe"], *(f"{c[key]:,}" for key in keys)] for c in counts]
    print_table(columns, rows)
    if folded:
        print(f"and {folded} ablations: unitsphere recipes --ablations lists them")
    return 0


def count(name: str) -> dict[str, Any]:
    """A recipe's parameters, all and by role, from shapes alone (the meta device)."""
    from unitsphere.models.registry import count_parameters
    from unitsphere.training.corpus import model_vocabulary
    from unitsphere.training.recipes import load_recipe

    config = load_recipe(name)
    numbers = dataclasses.replace(config.model, vocab_size=model_vocabulary(config))
    by_role = count_parameters(config.architecture, numbers, config.objective)
    shape = {key: getattr(numbers, key) for key in ("d_model", "n_layers", "n_heads", "vocab_size")}
    return {
        "recipe": name,
        "architecture": config.architecture,
        "objective": config.objective,
        "parameters": sum(by_role.values()),
        "by_role": by_role,
        **shape,
    }
