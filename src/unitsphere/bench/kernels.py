"""`unitsphere bench kernels`: bytes per second of each registered kernel, as a share of a copy.

The bytes are the fewest that the function can move: each input read once, each output written
once, and in the backward pass the gradient from above, what was saved, and the gradients made. A
function that writes intermediates to memory therefore has a low share. The plain function and the
kernel take turns; without a kernel (on a CPU) only the plain function is timed.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from unitsphere.bench.measure import clock_name, copy_rate, own_time, say, si, take_turns
from unitsphere.errors import UserError
from unitsphere.kernels.registry import REGISTRY, Kernel, mode, serves
from unitsphere.ops.project import AdamSettings, Target
from unitsphere.ops.rope import rope_table
from unitsphere.training.device import environment

COLUMNS = ("function", "pass", "by", "ms", "rate", "÷ copy")
OWN = "the kernels' own time, by torch's profiler"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of the tensors: tokens of width d in heads of d_k, and their type."""

    tokens: int
    d: int
    d_k: int
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True)
class Case:
    """A call to time. `moved` and `moved_back` are bytes, the latter None without a backward."""

    arguments: tuple[Any, ...]
    leaves: tuple[Tensor, ...]
    moved: int
    moved_back: int | None


def lerp_norm_case(shape: Shape) -> Case:
    """h, x and y; back: g, h, x, dh, dx."""
    h, x = torch.randn(2, shape.tokens, shape.d, device=shape.device).to(shape.dtype)
    alpha = torch.full((shape.d,), 0.05, device=shape.device)
    leaves = tuple(tensor.requires_grad_() for tensor in (h.clone(), x.clone(), alpha))
    one = h.numel() * h.element_size()
    return Case(leaves, leaves, 3 * one, 5 * one)


def rope_norm_case(shape: Shape) -> Case:
    """x and y; back: g, y, dx. Half of a head is rotated."""
    heads = shape.d // shape.d_k
    x = torch.randn(1, heads, shape.tokens, shape.d_k, device=shape.device).to(shape.dtype)
    x.requires_grad_()
    scale = torch.ones(heads, 1, shape.d_k, device=shape.device, requires_grad=True)
    table = rope_table(torch.arange(shape.tokens, device=shape.device), shape.d_k // 2, 1e4)
    one = x.numel() * x.element_size()
    return Case((x, table, scale), (x, scale), 2 * one, 3 * one)


def adam_project_case(shape: Shape) -> Case:
    """A matrix [4d, d] in fp32: w, g, m, v read, w, m, v written."""
    w, g, m, v = torch.randn(4, 4 * shape.d, shape.d, device=shape.device)
    step = torch.tensor(10.0, device=shape.device)
    adam, target = AdamSettings(1e-3, (0.9, 0.95), 1e-9, 0.0), Target("sphere", 1)
    return Case((w, g, m, v.square(), step, adam, target), (), 7 * 4 * w.numel(), None)


CASES: dict[str, Callable[[Shape], Case]] = {
    "lerp_norm": lerp_norm_case,
    "rope_norm": rope_norm_case,
    "adam_project_": adam_project_case,
}
"""A call for every registered kernel."""


def bench_kernels(shape: Shape, rounds: int) -> dict[str, Any]:
    """Everything that the verb reports, as plain values.

    Raises UserError for a width that heads do not divide: a function of no head moves nothing.
    """
    if shape.d % shape.d_k:
        raise UserError(f"--d_k {shape.d_k} does not divide --d_model {shape.d}: change one")
    say("copy")
    copy = copy_rate(shape.device)
    found = []
    for name, kernel in REGISTRY.items():
        say(name)
        found += figures(kernel, CASES[name](shape), shape, rounds, copy)
    return {
        "environment": environment(shape.device)
        | {
            "clock": OWN if shape.device.type == "cuda" else clock_name(shape.device),
            "sizes": {"tokens": shape.tokens, "d": shape.d, "d_k": shape.d_k},
            "dtype": str(shape.dtype).removeprefix("torch."),
            "kernels": mode(),
        },
        "copy": copy,
        "kernels": found,
    }


def figures(
    kernel: Kernel, case: Case, shape: Shape, rounds: int, copy: float
) -> list[dict[str, Any]]:
    """The figures of a kernel and of its plain function, forward and backward."""
    functions = {"plain": kernel.plain}
    if serves(kernel, *case.arguments):
        functions["kernel"] = kernel.load()
    rows = []
    for way, moved in (("forward", case.moved), ("backward", case.moved_back)):
        if moved is None:
            continue
        calls = {name: prepared(function, case, way) for name, function in functions.items()}
        for name, ms in medians(calls, rounds, shape.device).items():
            rate = moved / (ms / 1e3)
            rows.append(
                {
                    "name": kernel.name,
                    "pass": way,
                    "function": name,
                    "ms": ms,
                    "bytes": moved,
                    "bytes_per_second": rate,
                    "share_of_copy": rate / copy,
                }
            )
    return rows


def prepared(function: Callable[..., Tensor], case: Case, way: str) -> Callable[[], object]:
    """What is timed: the call, or only its backward pass."""
    if way == "forward":
        return lambda: function(*case.arguments)
    out = function(*case.arguments)
    above = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, case.leaves, above, retain_graph=True)


def medians(
    calls: dict[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, float]:
    """Name -> median ms; the calls take turns."""
    times = take_turns(list(calls), rounds, lambda name, _: own_time(calls[name], device))
    return {name: statistics.median(found) for name, found in times.items()}


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a function and pass."""
    return [
        [
            row["name"],
            row["pass"],
            row["function"],
            f"{row['ms']:.3g}",
            f"{si(row['bytes_per_second'])}B/s",
            f"{row['share_of_copy']:.0%}",
        ]
        for row in report["kernels"]
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes = environment["sizes"]
    return [
        f"{sizes['tokens']:,} tokens of {sizes['d']:,}, heads of {sizes['d_k']}, "
        f"{environment['dtype']} on {environment['device']}; {environment['clock']}; "
        f"a copy: {si(report['copy'])}B/s"
    ]
