"""`unitsphere bench optimizers`: what a step of each optimizer costs, and AdamW's.

Each optimizer has a copy of one model and steps it with the same gradients, its constraint
included. They take turns, in an order that rotates; a round's figure is the mean of its steps, for
SOAP's are not alike. The first is the baseline and runs twice: the difference is noise.
"""

import copy
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unitsphere.bench.arms import Sizes, arm_config, check_names, read_arm
from unitsphere.bench.measure import (
    COPY,
    against_baseline,
    clock_name,
    ratio_cells,
    size,
    state_bytes,
    take_turns,
    timed,
)
from unitsphere.models.registry import build_from
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.device import environment
from unitsphere.training.optim import build_optimizer, optim_config_type
from unitsphere.training.optim.constraint import constrain
from unitsphere.training.optim.registry import OPTIMIZERS

COLUMNS = ("optimizer", "ms", "state", "÷ baseline", "95%")
BASELINE = "adamw"
DEFAULT = (BASELINE, *(name for name in OPTIMIZERS if name != BASELINE))
"""All of them."""
BATCHED = "muon:muon.batched=true"
"""Muon with Newton–Schulz of equal matrices in one batched call."""
LAYERS = 4
"""Blocks unless others are asked for: as many copies of the model are held as there are arms."""


def default_arms(device: str) -> tuple[str, ...]:
    """What is timed where nobody names optimizers: a GPU batches Muon's matrices in any case."""
    return DEFAULT if torch.device(device).type == "cuda" else (*DEFAULT, BATCHED)


def bench_optimizers(
    arms: Sequence[str], architecture: str, sizes: Sizes, rounds: int, steps: int
) -> dict[str, Any]:
    """Everything that the verb reports, as plain values.

    arms: NAME or NAME:KEY=VALUE,… with keys of `optim.*`, the baseline first. architecture: an arm
    of `unitsphere bench`, whose model is stepped. Raises UserError for one that is not known.
    """
    check_names(arms)
    device = torch.device(sizes.device)
    config = arm_config(architecture, sizes)
    model = build_from(config.architecture, config.model, device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, device=device)
    names = [*arms, arms[0] + COPY]
    made = {name: with_optimizer(name.removesuffix(COPY), config, model) for name in names}
    times = take_turns(
        names,
        rounds,
        lambda name, number: statistics.mean(timed(made[name].step, steps, device)),
        tell=True,
    )
    noise, found = against_baseline({name: times[name] for name in arms}, times[names[-1]])
    return {
        "environment": environment(device)
        | {
            "model": architecture,
            "sizes": {k: getattr(sizes, k) for k in ("d_model", "n_layers", "vocab_size")},
            "protocol": {"rounds": rounds, "steps": steps},
            "clock": clock_name(device),
        },
        "noise": noise,
        "optimizers": {
            name: {
                "ms": statistics.median(times[name]),
                "state_bytes": state_bytes(made[name]),
            }
            for name in arms
        },
        "ratios": found,
    }


def with_optimizer(arm: str, config: RunConfig, model: nn.Module) -> Optimizer:
    """The arm's optimizer, with its constraint, of a copy of the model with the same gradients."""
    name, changes = read_arm(arm)
    plain = dataclasses.replace(config, optim=optim_config_type()())
    keys = {f"optim.{key}": value for key, value in changes.items()}
    optim = with_overrides(plain, {"optim.name": name} | keys).optim
    twin = copy.deepcopy(model)
    for own, parameter in zip(twin.parameters(), model.parameters(), strict=True):
        own.grad = parameter.grad
    optimizer = build_optimizer(twin, optim)
    constrain(twin, optimizer, config=optim.constrained, warmup=1)
    return optimizer


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row an optimizer."""
    baseline = report["noise"]["arm"]
    return [
        [
            name,
            f"{figures['ms']:,.2f}",
            size(figures["state_bytes"]),
            *ratio_cells(report["ratios"].get(f"{name}/{baseline}")),
        ]
        for name, figures in report["optimizers"].items()
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment, noise = report["environment"], report["noise"]
    sizes = environment["sizes"]
    return [
        f"steps of {environment['model']} with {sizes['n_layers']} layers of {sizes['d_model']}, "
        f"V = {sizes['vocab_size']:,}, on {environment['device']}; {environment['clock']}; "
        f"two copies of {noise['arm']} differ by up to {noise['floor']:.1%}"
    ]
