"""The cost of the live probes: CPU time of a probed step divided by that of a plain one.

    python benchmarks/live_probes.py [--steps 6] [RECIPE …]

Both are measured in turns in one process, without the first step, in CPU time, so that other work
on the machine matters less. The share is that of a training with the default `inspect.every`.
"""

import argparse
import dataclasses
import statistics
import time

import torch

from unitsphere.inspection.live import InspectConfig, Live
from unitsphere.training.corpus import open_corpus
from unitsphere.training.device import autocast
from unitsphere.training.plan import build_trainer
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import resolve
from unitsphere.training.step import update

RECIPES = ("quickstart/gpt-plus", "quickstart/ngpt", "quickstart/angpt", "quickstart/normformer")


def measure(recipe: str, steps: int) -> tuple[float, float]:
    """Median seconds of a plain step, and of what the default probes add to one."""
    config = resolve(load_recipe(recipe), None)
    corpus = open_corpus(config)
    live = Live(InspectConfig(every=2))
    trainer = dataclasses.replace(build_trainer(config, corpus.batches), live=live)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for step in range(2 * steps + 2):
        begun = time.process_time()
        update(trainer, step)
        precision = autocast(trainer.model.device, trainer.plan.precision)
        live.record(step + 1, trainer.model, trainer.optimizer, corpus.example, precision)
        if step >= 2:
            spent[live.due(step + 1)].append(time.process_time() - begun)
    plain = statistics.median(spent[False])
    return plain, statistics.median(spent[True]) - plain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    every = InspectConfig().every
    print(f"{'recipe':<24}{'step ms':>9}{'probes ms':>11}{f'share at every {every}':>22}")
    for recipe in args.recipes:
        step, probes = measure(recipe, args.steps)
        share = probes / (every * step + probes)
        print(f"{recipe:<24}{step * 1e3:>9.0f}{probes * 1e3:>11.0f}{share:>22.2%}")


if __name__ == "__main__":
    main()
