"""`unitsphere recipes`: what can be trained by name, paper by paper."""

import dataclasses
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import parse

ABOUT = {
    "quickstart": "small enough for a CPU and minutes",
    "unitsphere": "this project's own: what trained best here",
    "hybrid": "recurrent layers and attention in turn, this project's",
    "moe": "experts in the place of every MLP, this project's",
    "angpt2025": "anGPT, arXiv 2505.22014",
    "ngpt2024": "nGPT, arXiv 2410.01131",
    "normformer2021": "NormFormer, arXiv 2110.09456",
}
"""A group of recipes in a few words."""


@dataclasses.dataclass(frozen=True)
class Recipes:
    """The recipes that `unitsphere train` takes by name, paper by paper.

    Each line has a recipe's parameters, its width × its blocks, and its first
    sentence. The rows of the papers' ablation tables are only counted; --ablations
    lists them.

    examples:
      unitsphere recipes
      unitsphere recipes --ablations --json
    """

    ablations: bool = False
    """list the papers' ablations too"""
    json: bool = False
    """print one JSON document instead of a list"""


def run(argv: list[str]) -> int:
    """List the recipes."""
    args = parse(Recipes, argv, "recipes")
    from unitsphere.training.recipes import grouped_recipes, is_ablation

    groups = grouped_recipes()
    folded = {} if args.ablations else {g: sum(map(is_ablation, n)) for g, n in groups.items()}
    found = {
        group: [describe(name) for name in names if args.ablations or not is_ablation(name)]
        for group, names in groups.items()
    }
    if args.json:
        print_json([recipe for recipes in found.values() for recipe in recipes])
        return 0
    for group, recipes in found.items():
        print(f"{group}: {ABOUT[group]}" if group in ABOUT else group)
        print_group(recipes)
        if folded.get(group):
            print(f"  and {folded[group]} ablations: --ablations lists them")
        print()
    print("unitsphere train RECIPE trains one; its file says where each value comes from.")
    return 0


def describe(name: str) -> dict[str, Any]:
    """A recipe with what it is about, its parameters and its shape."""
    from unitsphere.cli.params import count
    from unitsphere.training.recipes import first_sentence, is_ablation

    paper = name.partition("/")[0]
    about = first_sentence(name)
    return {"paper": paper, "ablation": is_ablation(name), "about": about} | count(name)


def print_group(recipes: Sequence[dict[str, Any]]) -> None:
    """A line for each recipe, no longer than the terminal."""
    name_width = max((len(found["recipe"]) for found in recipes), default=0)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for found in recipes:
        shape = f"{found['d_model']}×{found['n_layers']}"
        about = re.sub(r" \(arXiv[^)]*\)", "", found["about"])  # the group has said it
        size = f"{found['parameters'] / 1e6:,.1f}M"
        text = f"  {found['recipe']:<{name_width}} {size:>8}  {shape:<7} {about}"
        print(text if width is None or len(text) <= width else f"{text[: width - 1]}…")
