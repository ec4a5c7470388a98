"""Bytes that the compiled block of an architecture moves per token, as inductor has scheduled it.

What inductor's fused kernels, the matrix products and attention read and write, counted from its
schedule of the forward and of the backward graph: no GPU, no C++ compiler and no clock, so the same
figures on every machine. The unit is the hidden state of a token, 4·d bytes in fp32, read or
written once. Weights are counted too, a few percent at these sizes.

    python tests/bench/traffic.py

prints the table of docs/results/speed.md.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering

from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.models.trunk import Transformer

TOKENS, D = 1024, 64
SIZES = {"vocab_size": 64, "d_model": D, "n_layers": 1, "n_heads": 4}
ARMS: dict[str, dict[str, Any]] = {name: {} for name in ARCHITECTURES}
ARMS |= {"gpt-plus": {"qk_norm": True, "rotary_fraction": 0.5}}


@dataclass(frozen=True)
class Traffic:
    """Hidden states moved per token."""

    forward: float
    backward: float


def arm_traffic(arm: str) -> Traffic:
    """The traffic of an architecture's block; gpt-plus is gpt with its settings."""
    return block_traffic(build("gpt" if arm == "gpt-plus" else arm, **SIZES, **ARMS[arm]))


def block_traffic(model: Transformer) -> Traffic:
    """The traffic of a model's first block over one sequence, training."""
    tokens = torch.zeros(1, TOKENS, dtype=torch.int64)
    context = model._context(tokens, None, None, None, True)
    h = torch.zeros(1, TOKENS, model.config.d_model, requires_grad=True)
    torch._dynamo.reset()
    with scheduled_only() as moved:
        compiled = torch.compile(model.blocks[0], dynamic=False, fullgraph=True)
        compiled(h, context).sum().backward()
    forward, backward = (total / (4 * h.numel()) for total in moved)
    return Traffic(forward, backward)


@contextmanager
def scheduled_only() -> Iterator[list[int]]:
    """Let inductor schedule every graph, collect the bytes it moves, and build no C++ kernel.

    The kernels do nothing when they are called, so what a compiled function returns is void.
    """
    moved: list[int] = []
    lower = GraphLowering.compile_to_module

    def lower_and_count(graph: GraphLowering) -> Any:
        module = lower(graph)
        moved.append(sum(node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes))
        return module

    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(GraphLowering, "compile_to_module", lower_and_count))
        enter(mock.patch.object(AsyncCompile, "cpp_pybinding", return_value=mock.Mock()))
        enter(inductor_config.patch({"fx_graph_cache": False, "cpp.simdlen": 1}))
        enter(functorch_config.patch(enable_autograd_cache=False))
        yield moved


if __name__ == "__main__":
    print("| block | forward | backward | both |\n|---|---:|---:|---:|")
    for arm in sorted(ARMS):
        t = arm_traffic(arm)
        print(f"| {arm} | {t.forward:.1f} | {t.backward:.1f} | {t.forward + t.backward:.1f} |")
