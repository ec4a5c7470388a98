"""`unitsphere bench generate`: what a token costs with the KV cache, arm against arm.

For each batch and context: a prompt of random tokens is continued greedily by one token (the
latency, which is the prompt's) and by some more; the difference is what the others cost. Arms take
turns in rounds, in an order that rotates, and the baseline has two. The arm `llama` is
transformers' own LlamaForCausalLM of the same shape, by its own `generate`.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from unitsphere.bench.arms import Sizes, arm_config, check_names, read_arm
from unitsphere.bench.llama import LLAMA, llama
from unitsphere.bench.statistics import Interval, is_tie, noise_floor, ratios, rotated
from unitsphere.bench.steps import clock_name, timed
from unitsphere.bench.train import COPY, say
from unitsphere.inference.generate import generate
from unitsphere.models.plans import fold_
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training.environment import environment


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked of the models at once: prompts of `context` tokens, `batch` of them."""

    batch: int
    context: int


@dataclasses.dataclass
class Times:
    """An arm's times under one load, in ms, one of each a round."""

    prompt: list[float] = dataclasses.field(default_factory=list)
    token: list[float] = dataclasses.field(default_factory=list)


Writer = Callable[[list[list[int]], int], object]
"""Continues prompts greedily by a number of tokens."""


def bench_generation(
    names: Sequence[str], sizes: Sizes, loads: Sequence[Load], tokens: int, rounds: int
) -> dict[str, Any]:
    """Everything that the verb reports, as plain values. Raises UserError for no arm."""
    check_names(names)
    device = torch.device(sizes.device)
    models = {name: writer(name, sizes, device) for name in names}
    models[names[0] + COPY] = models[names[0]]
    found = []
    for load in loads:
        say(f"batch {load.batch}, context {load.context}")
        times = measure(models, load, sizes.vocab_size, tokens, rounds, device)
        found.append(report_of(load, times, names))
    return {
        "environment": environment(device)
        | {
            "sizes": dataclasses.asdict(sizes),
            "protocol": {"tokens": tokens, "rounds": rounds},
            "clock": clock_name(device),
        },
        "loads": found,
    }


def writer(name: str, sizes: Sizes, device: torch.device) -> Writer:
    """How an arm writes: by this package's `generate`, or by transformers'."""
    if name == LLAMA:
        return llama(sizes, device)
    _, changes = read_arm(name)
    model = built(name, sizes, device)
    return partial(generate, model, compile=changes.get("train.compile") is True)


def built(name: str, sizes: Sizes, device: torch.device) -> Transformer:
    """An arm's model, folded, as `unitsphere generate` uses it."""
    config = arm_config(name, sizes)
    return fold_(build_from(config.architecture, config.model, device))


def measure(
    models: dict[str, Writer],
    load: Load,
    vocabulary: int,
    tokens: int,
    rounds: int,
    device: torch.device,
) -> dict[str, Times]:
    """Arm -> its times under the load."""
    times = {name: Times() for name in models}
    for number in range(-1, rounds):  # the first round warms up
        for name in rotated(list(models), number):
            prompts = random_prompts(load, vocabulary, number)
            prompt, token = one_round(models[name], prompts, tokens, device)
            if number >= 0:
                times[name].prompt.append(prompt)
                times[name].token.append(token)
    return times


def one_round(
    write: Writer, prompts: list[list[int]], tokens: int, device: torch.device
) -> tuple[float, float]:
    """Ms until the first token of every prompt, and ms of each further one."""
    (first,) = timed(lambda: write(prompts, 1), 1, device)
    (whole,) = timed(lambda: write(prompts, tokens + 1), 1, device)
    return first, (whole - first) / tokens


def random_prompts(load: Load, vocabulary: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `context` uniform random tokens."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randint(vocabulary, (load.batch, load.context), generator=generator)
    return drawn.tolist()


def report_of(load: Load, times: dict[str, Times], names: Sequence[str]) -> dict[str, Any]:
    """The figures of one load; the noise is that of the two turns of the baseline."""
    base = times[names[0]]
    same = ratios(times[names[0] + COPY].token, base.token)
    floor = noise_floor(same)

    def told(ratio: Interval) -> dict[str, Any]:
        return dataclasses.asdict(ratio) | {"tie": is_tie(ratio, floor)}

    return {
        **dataclasses.asdict(load),
        "noise": {"arm": names[0], **dataclasses.asdict(same), "floor": floor},
        "arms": {
            name: {
                "latency_ms": statistics.median(times[name].prompt),
                "ms_a_token": statistics.median(times[name].token),
                "tokens_per_second": 1e3 * load.batch / statistics.median(times[name].token),
            }
            for name in names
        },
        "ratios": {
            f"{name}/{names[0]}": told(ratios(times[name].token, base.token)) for name in names[1:]
        },
    }
