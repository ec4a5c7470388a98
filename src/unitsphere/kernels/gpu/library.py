"""What the kernels share: how they become torch operators, and how they cover a tensor."""

from collections.abc import Callable, Iterable
from typing import Any

import triton
import triton.language as tl
from torch.library import custom_op, triton_op
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret


def kernel_op(name: str, mutates_args: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that launches kernels the torch operator `unitsphere::name`.

    The compiler sees through it to the kernels. Interpreted kernels cannot be traced: then it is
    opaque, and everything else is the same.
    """
    make = custom_op if INTERPRETED else triton_op
    return make(f"unitsphere::{name}", mutates_args=mutates_args)


def covering(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def blocks(n: int, size: int) -> int:
    """How many blocks of `size` cover n."""
    return (n + size - 1) // size


def warps(elements: int) -> int:
    """Warps for a tile: 16 elements a thread, from 2 warps to 16."""
    return min(max(covering(elements) // 512, 2), 16)


@triton.jit
def reciprocal(square):
    """1/√square, and 1 for 0: a zero vector stays zero and passes its gradient on unchanged."""
    root = tl.sqrt_rn(square)
    return tl.div_rn(1.0, tl.where(root == 0.0, 1.0, root))
