"""Attention by device: in bf16 on a CPU by blocks of queries, on a GPU the order of SDPA's kernels.

SDPA's kernel for a CPU is slow in bf16, its backward pass above all. Here attention is torch's own
matrix products, of `BLOCK` queries with the keys that they may see: 9.7 ms instead of 15.4, forward
and backward, for 8 sequences of 256 and 2 heads of 64 (docs/log.md). The softmax's weights are kept
for the backward pass, so it serves short sequences only. In fp32 SDPA's kernel stays, 4% of a step
slower.

On a GPU the first of SDPA's kernels in the order that can serve a call does: cuDNN's and flash take
no fp32, flash no mask. torch.compile asks for the order when it traces, so it has to be set before:
a compiled graph keeps the kernel that it was traced with.
"""

import atexit
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask

from unitsphere.kernels.registry import mode
from unitsphere.ops import attention as ops

BLOCK = 64
"""Queries at once: their products with 256 keys of 16 heads stay in the cache."""
LONGEST_SEQUENCE = 1024
"""Of the sequences: the weights of longer ones take too much memory."""
CUDNN_FIXED = 91501
"""cuDNN 9.15.1: before it, attention was wrong where a length was not a multiple of 128."""
OPT_OUT = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""torch's environment variable for users who do not want cuDNN first."""
softmax_gradient = torch.ops.aten._softmax_backward_data


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | BlockMask | None,
    causal: bool,
    dropout: float = 0.0,
) -> Tensor:
    """`ops.attention.attention`, by blocks of queries where those can serve and are faster."""
    if mode() != "off" and causal and mask is None and not dropout and suits(q, k, v):
        return CausalAttention.apply(q, k, v, scale)  # pyright: ignore[reportReturnType]
    return ops.attention(q, k, v, scale, mask, causal, dropout)


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are trained on a CPU, in bf16, of one shape and of a suitable length."""
    return (
        torch.is_grad_enabled()
        and q.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype == torch.bfloat16
        and q.shape == k.shape == v.shape
        and BLOCK <= q.shape[-2] <= LONGEST_SEQUENCE
        and not hasattr(q, "placements")
    )


class CausalAttention(torch.autograd.Function):
    """softmax(q kᵀ · scale + M) v of bf16 [batch, H, time, d_k], M as causality has it.

    The product of the scores is in fp32, the others in bf16, with sums over blocks in fp32.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """o; keeps q, k, v and the weights."""
        batch, heads, time, d_k = ctx.shape = q.shape
        q, k, v = (x.reshape(-1, time, d_k) for x in (q, k, v))
        wide_q, wide_k = q.float() * scale, k.float().mT
        hidden = torch.full((BLOCK, BLOCK), -math.inf).triu(1)
        o, weights = [], []
        for start, end in blocks(time):
            scores = wide_q[:, start:end] @ wide_k[..., :end]
            scores[..., start:] += hidden[: end - start, : end - start]
            weights.append(scores.softmax(-1).to(q.dtype))
            o.append(weights[-1] @ v[:, :end])
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, *weights)
        return torch.cat(o, dim=1).view(batch, heads, time, d_k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """dq, dk and dv."""
        q, k, v, *weights = ctx.saved_tensors
        g = g.reshape(q.shape)
        dq, dk, dv = [], [], []
        for (start, end), p in zip(blocks(q.shape[1]), weights, strict=True):
            dp = g[:, start:end] @ v[:, :end].mT
            ds = softmax_gradient(dp.float(), p.float(), -1, torch.float32)
            ds = ds.mul_(ctx.scale).to(q.dtype)
            dq.append(ds @ k[:, :end])
            dk.append(ds.mT @ q[:, start:end])
            dv.append(p.mT @ g[:, start:end])
        dq, dk, dv = torch.cat(dq, dim=1), summed(dk, q.dtype), summed(dv, q.dtype)
        return dq.view(ctx.shape), dk.view(ctx.shape), dv.view(ctx.shape), None


def summed(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """What each block of queries adds for the keys from 0 on, summed in fp32.

    Without writes into a part of a sum: what the compiler makes of those is slow.
    """
    total = parts[-1].float()
    for part in parts[:-1]:
        total = total + F.pad(part.float(), (0, 0, 0, total.shape[1] - part.shape[1]))
    return total.to(dtype)


def blocks(time: int) -> list[tuple[int, int]]:
    """First query of each block, and the one after its last."""
    return [(start, min(start + BLOCK, time)) for start in range(0, time, BLOCK)]


_held = ExitStack()
atexit.register(_held.close)


def attention_backends(capability: tuple[int, int], cudnn: int | None) -> list[SDPBackend]:
    """SDPA's kernels in the order in which a GPU of that compute capability tries them.

    cuDNN's first on Hopper (9.0) and Blackwell (10.x), flash elsewhere. `cudnn` is the version as
    `torch.backends.cudnn.version()` gives it; None, where there is none. An old one comes last.
    """
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    first = capability[0] in (9, 10) and (cudnn or 0) >= CUDNN_FIXED
    if first and not os.environ.get(OPT_OUT):
        return [SDPBackend.CUDNN_ATTENTION, *fused]
    return [*fused, SDPBackend.CUDNN_ATTENTION]


def backends_of(device: torch.device) -> list[SDPBackend]:
    """`attention_backends` of a GPU that is here."""
    capability = torch.cuda.get_device_capability(device)
    return attention_backends(capability, torch.backends.cudnn.version())


def use_attention_of(device: torch.device) -> None:
    """Let SDPA try its kernels in the device's order, for the rest of the process."""
    _held.close()
    if device.type == "cuda":
        _held.enter_context(sdpa_kernel(backends_of(device), set_priority=True))
