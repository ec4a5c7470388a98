"""`unitsphere bench loss`: the ways to a linear head's cross-entropy, in time and in memory."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from unitsphere.bench.memory import METHODS, peak_of
from unitsphere.bench.statistics import interval, ratios, rotated
from unitsphere.bench.steps import clock_name, timed
from unitsphere.bench.train import say
from unitsphere.errors import UserError
from unitsphere.ops.loss import Path, linear_cross_entropy
from unitsphere.training.device import autocast
from unitsphere.training.environment import environment

BASELINE: Path = "plain"


@dataclasses.dataclass(frozen=True)
class Head:
    """A linear head: tokens at once, width, vocabulary; in bf16 or fp32."""

    tokens: int
    d: int
    vocab_size: int
    bf16: bool
    device: torch.device


def bench_loss(head: Head, rounds: int) -> dict[str, Any]:
    """Everything that the verb reports, as plain values; a path that does not serve says why."""
    calls, refused = serving(head)
    times: dict[str, list[float]] = {path: [] for path in calls}
    for number in range(-1, rounds):  # the first round warms up
        say(f"round {number + 1} of {rounds}")
        for path in rotated(list(calls), number):
            (ms,) = timed(calls[path], 1, head.device)
            if number >= 0:
                times[path].append(ms)
    return {
        "environment": environment(head.device)
        | {
            "sizes": {"tokens": head.tokens, "d": head.d, "vocab_size": head.vocab_size},
            "precision": "bf16" if head.bf16 else "fp32",
            "protocol": {"rounds": rounds},
            "clock": clock_name(head.device),
            "memory": METHODS[head.device.type],
        },
        "logits_bytes": 4 * head.tokens * head.vocab_size,
        "paths": {
            path: {
                "ms": statistics.median(times[path]),
                "peak_bytes": peak_of(call, head.device),
                "ratio": dataclasses.asdict(
                    ratios(times[path], times[BASELINE])
                    if path != BASELINE
                    else interval([1.0] * rounds)
                ),
            }
            for path, call in calls.items()
        },
        "refused": refused,
    }


def serving(head: Head) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """Forward and backward by each path that serves, and why the others do not."""
    g = torch.Generator().manual_seed(0)
    h = torch.randn(head.tokens, head.d, generator=g).to(head.device)
    weight = (torch.randn(head.vocab_size, head.d, generator=g) / head.d**0.5).to(head.device)
    targets = torch.randint(head.vocab_size, (head.tokens,), generator=g).to(head.device)
    h.requires_grad_()
    weight.requires_grad_()
    calls: dict[str, Callable[[], None]] = {}
    refused: dict[str, str] = {}
    for path in [BASELINE, *(p for p in get_args(Path) if p not in ("auto", BASELINE))]:
        call = forward_and_backward(h, weight, targets, path, head)
        try:
            call()
        except UserError as error:
            refused[path] = str(error)
        else:
            calls[path] = call
    return calls, refused


def forward_and_backward(
    h: Tensor, weight: Tensor, targets: Tensor, path: Path, head: Head
) -> Callable[[], None]:
    """A call of the loss and its gradients, which are let go."""

    def call() -> None:
        with autocast(head.device, "bf16" if head.bf16 else "fp32"):
            loss = linear_cross_entropy(h, weight, targets, path=path)
        torch.autograd.grad(loss, (h, weight))

    return call
