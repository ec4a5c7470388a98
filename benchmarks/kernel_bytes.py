"""Bytes that the plain functions behind the kernels move, eager and compiled: docs/kernels.md.

    TORCH_LOGS=inductor_metrics python benchmarks/kernel_bytes.py 2>/dev/null

On a CPU, without running a kernel. Printed as multiples of d per token, forward and backward.
"""

from collections.abc import Callable

import torch
import torch._inductor.config
from torch import Tensor
from torch._inductor import metrics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unitsphere.ops.attention import split_heads
from unitsphere.ops.residual import lerp, lerp_norm
from unitsphere.ops.rope import rope_norm, rope_table

BATCH, TIME, D, HEADS = 4, 512, 1024, 16
D_K = D // HEADS
FREE = {"view", "_unsafe_view", "transpose", "expand", "detach", "slice", "split_with_sizes",
        "unsqueeze", "squeeze", "select", "permute", "alias", "empty_like"}  # fmt: skip


class Moved(TorchDispatchMode):
    """Counts the bytes of every call's inputs and outputs, calls that only make views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in FREE:
            tensors = [a for a in tree_leaves((args, kwargs, output)) if isinstance(a, Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return output


def eager(function: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> tuple[int, int]:
    """Bytes of the forward and of the backward pass."""
    with Moved() as moved:
        output = function(*inputs)
        forward = moved.bytes
        torch.autograd.grad(output, inputs, g)
    return forward, moved.bytes - forward


def compiled(function: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> tuple[int, int]:
    """The same, by the compiler's own count."""
    torch._dynamo.reset()
    metrics.reset()
    output = torch.compile(function)(*inputs)
    forward = metrics.num_bytes_accessed
    torch.autograd.grad(output, inputs, g)
    return forward, metrics.num_bytes_accessed - forward


def show(name: str, function: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> None:
    inputs = [t.detach().requires_grad_() for t in inputs]
    figures = (*eager(function, inputs, g), *compiled(function, inputs, g))
    shown = [f"{n / (BATCH * TIME * D):6.1f} d" for n in figures]
    print(f"{name:<22}eager{shown[0]}{shown[1]}   compiled{shown[2]}{shown[3]}")


def main() -> None:
    torch._inductor.config.fx_graph_cache = False
    h, x, g = torch.randn(3, BATCH, TIME, D).bfloat16()
    alpha, s_qk = torch.full((D,), 0.05), torch.ones(HEADS, 1, D_K)
    positions = torch.arange(TIME)
    whole = rope_table(positions, D_K, 10000.0)
    half = rope_table(positions, D_K // 2, 10000.0)
    show("lerp_norm", lerp_norm, [h, x, alpha], g)
    show("anGPT's lerp", lambda h, x, a: lerp(h, x, a).to(h.dtype), [h, x, alpha], g)
    g = split_heads(g, HEADS).contiguous()
    show("rope_norm", lambda x, s: rope_norm(split_heads(x, HEADS), whole, s), [x, s_qk], g)
    show("rope_norm half, bare", lambda x: rope_norm(split_heads(x, HEADS), half), [x], g)


if __name__ == "__main__":
    main()
