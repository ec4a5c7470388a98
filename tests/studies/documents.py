"""A comparison's document from played records: no training."""

from pathlib import Path

import numpy as np
from studies.tiny import recipes

from unitsphere.studies.compare import document
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.plan import Planned, wanted
from unitsphere.studies.core.tune import Tuned
from unitsphere.studies.gains import Comparison

BUDGETS = (384, 768, 1536)


def law(tokens: float, faster: float) -> float:
    """The loss of an arm that needs `faster` times fewer tokens than the law asks for."""
    return 1.7 + 40 * (faster * tokens) ** -0.4


def played(
    folder: Path,
    faster: dict[str, float],
    seeds=(0, 1, 2),
    noise=0.002,
    pace=None,
    changes=None,
    worse=None,
    last=None,
) -> dict:
    """The document of arms of known speed, the first is the baseline.

    pace: tokens per second of an arm. changes: keys set in one. worse: nats by which an arm's
    largest budget is worse than the law. last: keys that an arm has at its largest budget only.
    """
    changes = {arm: {} for arm in faster} | (changes or {})
    random = np.random.default_rng(1)
    recipe = recipes(folder)[0]
    configs = {arm: wanted(recipe, changes[arm], folder / "none") for arm in faster}
    rates = {
        (arm, t): Tuned(0.02, t, {0.01: 3.0, 0.02: 2.0, 0.04: None}, at_edge=False)
        for arm in faster
        for t in BUDGETS
    }
    records = {}
    for seed in seeds:
        for tokens in BUDGETS:
            shared = random.normal(0, 0.01)
            for arm, speed in faster.items():
                own = changes[arm] | ((last or {}).get(arm, {}) if tokens == BUDGETS[-1] else {})
                batch = own.get("train.batch_tokens", configs[arm].train.batch_tokens)
                keys = {"train.steps": tokens // batch, "train.seed": seed, **own}
                out = folder / "runs" / arm / f"{tokens}-{seed}"
                run = Planned(arm, recipe, keys, out, wanted(recipe, keys, out))
                loss = law(tokens, speed) + shared + random.normal(0, noise)
                loss += (worse or {}).get(arm, 0.0) * (tokens == BUDGETS[-1])
                records[arm, tokens, seed] = Record(
                    run,
                    "finished",
                    loss=loss,
                    bits_per_byte=loss / 0.7,
                    seconds=tokens / 1000,
                    tokens_per_second=(pace or {}).get(arm, 1000.0),
                    environment={"device": "cpu", "cpu": "a", "threads": 1, "commit": "abc"},
                )
    found = Comparison(next(iter(faster)), BUDGETS, seeds, configs, rates, records)
    return document(found, dict.fromkeys(faster, recipe), [])
