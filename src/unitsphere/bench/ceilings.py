"""What the device can do at best, measured before and after: copies and matrix products.

Times drift with the temperature of a GPU and with other programs on a CPU; ceilings that moved
say that the figures between them are worth less.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from unitsphere.bench.steps import timed

REPEATS = 7
DRIFT = 0.02
"""A ceiling that moves by more than this between start and end is told."""


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second of a large copy (read and written), operations a second of a product."""

    copy: float
    matmul: float


def ceilings(device: torch.device) -> Ceilings:
    """CUDA: 4 GB and 8,192³ in bf16; CPU: 256 MB and 1,024³ in fp32."""
    on_gpu = device.type == "cuda"
    return Ceilings(
        copy_rate(2**32 if on_gpu else 2**28, device),
        matmul_rate(8192 if on_gpu else 1024, torch.bfloat16 if on_gpu else torch.float32, device),
    )


def copy_rate(size: int, device: torch.device) -> float:
    """Bytes read and written a second when `size` bytes are copied on the device."""
    source = torch.ones(size // 8, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def matmul_rate(n: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a product of n × n matrices of random numbers."""
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * n**3 / _seconds(lambda: torch.mm(a, b, out=out), device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    timed(call, 2, device)
    return statistics.median(timed(call, REPEATS, device)) / 1e3


def drift(first: Ceilings, last: Ceilings) -> float:
    """The largest relative change of a ceiling."""
    return max(abs(last.copy / first.copy - 1), abs(last.matmul / first.matmul - 1))
