"""`unitsphere bench loss`: the ways to a linear head's cross-entropy, in time and in memory."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from unitsphere.bench.measure import (
    METHODS,
    clock_name,
    peak_of,
    ratios,
    size,
    take_turns,
    timed,
)
from unitsphere.errors import UserError
from unitsphere.ops.loss import Path, linear_cross_entropy
from unitsphere.training.device import autocast, environment

COLUMNS = ("path", "ms", "÷ plain", "95%", "peak")
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
    """Everything that the verb reports, as plain values; a path that cannot be used says why."""
    calls, refused = serving(head)
    times = take_turns(
        list(calls), rounds, lambda path, number: timed(calls[path], 1, head.device)[0], tell=True
    )
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
                "ratio": dataclasses.asdict(ratios(times[path], times[BASELINE])),
            }
            for path, call in calls.items()
        },
        "refused": refused,
    }


def serving(head: Head) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """Forward and backward by each path that can be used, and why the others cannot."""
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


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a path."""
    return [
        [
            name,
            f"{path['ms']:,.1f}",
            f"{path['ratio']['median']:.3f}",
            f"{path['ratio']['low']:.3f}–{path['ratio']['high']:.3f}",
            size(path["peak_bytes"]),
        ]
        for name, path in report["paths"].items()
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes = environment["sizes"]
    return [
        f"{sizes['tokens']:,} tokens of {sizes['d']:,}, V = {sizes['vocab_size']:,}, "
        f"{environment['precision']} on {environment['device']}; the logits in fp32 are "
        f"{size(report['logits_bytes'])}, the weight's gradient is "
        f"{size(4 * sizes['d'] * sizes['vocab_size'])}",
        *(f"{path}: {why}" for path, why in report["refused"].items()),
    ]
