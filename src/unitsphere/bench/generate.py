"""`unitsphere bench generate`: the cost of a token with the KV cache, arm against arm.

For each batch and context, a prompt of random tokens is continued greedily by one token (its time
is the latency) and then by more tokens; the difference is the cost of the others. Arms take turns
in rounds, and the baseline runs twice. The arm `llama` is transformers' own LlamaForCausalLM of the
same shape, with its own `generate`.
"""

import dataclasses
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from unitsphere.bench.arms import Sizes, arm_config, check_names, read_arm
from unitsphere.bench.measure import (
    COPY,
    against_baseline,
    clock_name,
    ratio_cells,
    say,
    take_turns,
    timed,
)
from unitsphere.errors import UserError
from unitsphere.inference.generate import generate
from unitsphere.models.plans import fold_
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training.device import environment

LLAMA = "llama"
"""The name of the arm that is transformers' own model."""
COLUMNS = (
    "batch", "context", "arm", "latency ms", "ms per token", "tokens/s", "÷ baseline", "95%"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked of the models at once: prompts of `context` tokens, `batch` of them."""

    batch: int
    context: int


@dataclasses.dataclass
class Times:
    """An arm's times under one load: ms to the first token, and ms per further token, by round."""

    prompt: list[float]
    token: list[float]


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
        check_longer(times, tokens)
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
    compiled = changes.get("train.compile") is True
    return partial(generate, built(name, sizes, device), compile=compiled)


def built(name: str, sizes: Sizes, device: torch.device) -> Transformer:
    """An arm's model, folded, as `unitsphere generate` uses it; UserError if it writes no text."""
    config = arm_config(name, sizes)
    if config.objective != "clm":
        raise UserError(f"the arm {name} has the objective {config.objective}, and writes no text")
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

    def turn(name: str, number: int) -> tuple[float, float]:
        return one_round(models[name], random_prompts(load, vocabulary, number), tokens, device)

    pairs = take_turns(list(models), rounds, turn)
    return {name: Times(*map(list, zip(*found, strict=True))) for name, found in pairs.items()}


def one_round(
    write: Writer, prompts: list[list[int]], tokens: int, device: torch.device
) -> tuple[float, float]:
    """Ms until the first token of every prompt, and ms of each further one."""
    (first,) = timed(lambda: write(prompts, 1), 1, device)
    (whole,) = timed(lambda: write(prompts, tokens + 1), 1, device)
    return first, (whole - first) / tokens


def check_longer(times: Mapping[str, Times], tokens: int) -> None:
    """Raise UserError if an arm took no longer for more tokens: noise was all that was measured."""
    for name, found in times.items():
        if statistics.median(found.token) <= 0:
            raise UserError(
                f"{name}: {tokens} tokens after the first took no time that could be measured: "
                "give --new more tokens"
            )


def random_prompts(load: Load, vocabulary: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `context` uniform random tokens."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randint(vocabulary, (load.batch, load.context), generator=generator)
    return drawn.tolist()


def report_of(load: Load, times: dict[str, Times], names: Sequence[str]) -> dict[str, Any]:
    """The figures of one load; the noise is between the two copies of the baseline."""
    tokens = {name: times[name].token for name in names}
    noise, ratios = against_baseline(tokens, times[names[0] + COPY].token)
    return {
        **dataclasses.asdict(load),
        "noise": noise,
        "arms": {
            name: {
                "latency_ms": statistics.median(times[name].prompt),
                "ms_a_token": statistics.median(times[name].token),
                "tokens_per_second": 1e3 * load.batch / statistics.median(times[name].token),
            }
            for name in names
        },
        "ratios": ratios,
    }


def llama(sizes: Sizes, device: torch.device) -> Writer:
    """Continues prompts of one length greedily by a number of tokens, as its users would.

    An MLP of 4·d_model, as the other arms have it, no end token, transformers' choice of attention.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UserError("the arm llama needs transformers: pip install 'unitsphere[hf]'")
    from transformers import LlamaConfig, LlamaForCausalLM

    from unitsphere.inference.hf import quiet_torchao

    quiet_torchao()  # transformers imports it when it builds a model

    config = LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        intermediate_size=4 * sizes.d_model,
        num_hidden_layers=sizes.n_layers,
        num_attention_heads=sizes.n_heads,
        num_key_value_heads=sizes.n_heads,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(device).eval()

    def write(prompts: list[list[int]], tokens: int) -> torch.Tensor:
        ids = torch.tensor(prompts, device=device)
        seen = torch.ones_like(ids)
        return model.generate(ids, attention_mask=seen, max_new_tokens=tokens, do_sample=False)

    return write


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a load and arm."""
    return [
        [
            str(load["batch"]),
            f"{load['context']:,}",
            name,
            f"{arm['latency_ms']:.1f}",
            f"{arm['ms_a_token']:.2f}",
            f"{arm['tokens_per_second']:,.0f}",
            *ratio_cells(load["ratios"].get(f"{name}/{load['noise']['arm']}")),
        ]
        for load in report["loads"]
        for name, arm in load["arms"].items()
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes, protocol = environment["sizes"], environment["protocol"]
    return [
        f"{sizes['n_layers']} layers of {sizes['d_model']}, V = {sizes['vocab_size']:,}, on "
        f"{environment['device']}, {environment['threads']} threads; {environment['clock']}; "
        f"{protocol['rounds']} rounds, {protocol['tokens']} tokens after the first",
        *(
            f"noise at batch {load['batch']}, context {load['context']:,}: "
            f"within {load['noise']['floor']:.1%} of 1 is a tie"
            for load in report["loads"]
        ),
    ]
