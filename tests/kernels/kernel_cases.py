"""Arguments for every registered kernel, and what a call of it yields."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from unitsphere.kernels.registry import REGISTRY
from unitsphere.ops.attention import split_heads
from unitsphere.ops.norm import unit_norm
from unitsphere.ops.project import AdamSettings, Target
from unitsphere.ops.rope import rope_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """One set of arguments; tensors that require a gradient are differentiated."""

    kernel: str
    name: str
    make: Callable[[], tuple[Any, ...]]
    narrow: tuple[int, ...] = ()
    """positions of the arguments that may be in bf16"""
    written: tuple[int, ...] = ()
    """positions of the arguments that are written in place"""

    def __str__(self) -> str:
        return f"{self.kernel}-{self.name}"

    def arguments(self, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
        """Fresh ones on the device; in bf16, those that may be."""
        torch.manual_seed(0)
        made = self.make()
        if dtype is torch.float64:
            return tree_map(lambda a: as_leaf(a, dtype), made)
        return tuple(
            tree_map(lambda a, i=i: as_leaf(a, dtype if i in self.narrow else None), argument)
            for i, argument in enumerate(made)
        )


def as_leaf(argument: Any, dtype: torch.dtype | None) -> Any:
    """A tensor on the device in `dtype`, its strides and its need of a gradient kept."""
    if not isinstance(argument, Tensor):
        return argument
    return argument.detach().to(DEVICE, dtype).requires_grad_(argument.requires_grad)


def results(
    function: Callable[..., Any], case: Case, arguments: tuple[Any, ...], around: Any = None
) -> list[Tensor]:
    """The output and every gradient, or what was written in place.

    `around(function, *arguments)` makes the call, where it is given.
    """
    output = function(*arguments) if around is None else around(function, *arguments)
    if case.written:
        return [arguments[i] for i in case.written]
    inputs = [a for a in tree_leaves(arguments) if isinstance(a, Tensor) and a.requires_grad]
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    upstream = upstream.bfloat16().to(DEVICE, output.dtype)  # the same number in every dtype
    return [output, *torch.autograd.grad(output, inputs, upstream)]


class Recorder(TorchDispatchMode):
    """The calls of this project's operators, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "unitsphere":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))

    def names(self) -> list[str]:
        """What was called, in order."""
        return [op.name().removeprefix("unitsphere::") for op, _ in self.calls]


def leaf(*shape: int) -> Tensor:
    """Normal numbers that bf16 holds too."""
    return torch.randn(*shape).bfloat16().float().requires_grad_()


def rates(*shape: int) -> Tensor:
    return (torch.rand(shape) * 0.4).requires_grad_()


def residual(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        h = unit_norm(torch.randn(*shape)).bfloat16().float()
    return h.requires_grad_(), leaf(*shape), rates(shape[-1])


def residual_zeros() -> tuple[Tensor, Tensor, Tensor]:
    h, x, alpha = residual(6, 20)
    with torch.no_grad():
        h[0], x[1], h[2], x[2] = 0, 0, 0, 0
    return h, x, alpha


def residual_strided() -> tuple[Tensor, Tensor, Tensor]:
    h = leaf(12, 5, 3).detach().transpose(0, 2).requires_grad_()
    x = leaf(3, 5, 24).detach()[..., ::2].requires_grad_()
    return h, x, torch.full((24,), 0.3)[::2].requires_grad_()


def with_alpha(alpha: Tensor | float) -> tuple[Tensor, Tensor, Tensor | float]:
    h, x, _ = residual(2, 3, 17)
    return h, x, alpha


def heads(batch: int, n_heads: int, time: int, d_k: int) -> Tensor:
    """As a model has them: a view of [batch, time, H·d_k]."""
    return split_heads(leaf(batch, time, n_heads * d_k).detach(), n_heads).requires_grad_()


def table(time: int, d_rot: int, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """RoPE's for all batch rows, or for `rows` of them that are padded on the left."""
    positions = torch.arange(time)
    if rows is not None:
        positions = (positions - torch.arange(rows)[:, None]).clamp(min=0)[:, None]
    return rope_table(positions, d_rot, 10000.0)


def heads_zeros() -> tuple[Any, ...]:
    x = heads(2, 2, 5, 8)
    with torch.no_grad():
        x[0, 0, 0], x[1, 1, 4] = 0, 0
    return x, table(5, 8), rates(2, 1, 8)


def heads_strided() -> tuple[Any, ...]:
    x = leaf(1, 2, 6, 10).detach().transpose(1, 3)[..., :2].transpose(2, 3).requires_grad_()
    return x, table(2, 4), rates(10, 1, 1)


def moments(d_out: int, d_in: int, step: float) -> tuple[Tensor, ...]:
    """A weight, its gradient and Adam's state before this step."""
    weight, gradient = torch.randn(d_out, d_in) * 0.2, torch.randn(d_out, d_in) * 0.01
    exp_avg, exp_avg_sq = torch.randn(d_out, d_in) * 0.01, torch.rand(d_out, d_in) * 1e-4
    if step == 1:
        exp_avg, exp_avg_sq = torch.zeros(2, d_out, d_in)
    weight[0], gradient[0], exp_avg[0] = 0, 0, 0
    return weight, gradient, exp_avg, exp_avg_sq, torch.tensor(step)


def adam(
    d_out: int,
    d_in: int,
    step: float,
    target: Target,
    lr: float = 1e-2,
    decay: float = 0.1,
    decoupled: bool = False,
) -> Callable[[], tuple[Any, ...]]:
    settings = AdamSettings(lr, (0.9, 0.999), 1e-8, decay, decoupled)
    return lambda: (*moments(d_out, d_in, step), settings, target)


def _case(kernel: str, name: str, make: Callable[[], tuple[Any, ...]]) -> Case:
    narrow = {"lerp_norm": (0, 1), "rope_norm": (0,)}.get(kernel, ())
    return Case(kernel, name, make, narrow, (0, 2, 3) if kernel == "adam_project_" else ())


CASES = [
    _case("lerp_norm", "odd", lambda: residual(2, 3, 37)),
    _case("lerp_norm", "several-programs", lambda: residual(9, 640)),
    _case("lerp_norm", "one-vector", lambda: residual(5)),
    _case("lerp_norm", "zeros", residual_zeros),
    _case("lerp_norm", "strided", residual_strided),
    _case("lerp_norm", "scalar", lambda: with_alpha(torch.tensor(0.3).requires_grad_())),
    _case("lerp_norm", "float", lambda: with_alpha(0.3)),
    _case("rope_norm", "ngpt", lambda: (heads(2, 2, 7, 16), table(7, 16), rates(2, 1, 16))),
    _case("rope_norm", "gpt-plus", lambda: (heads(2, 3, 5, 24), table(5, 12), rates(3, 1, 1))),
    _case("rope_norm", "no-scale", lambda: (heads(1, 2, 3, 10), table(3, 2), None)),
    _case("rope_norm", "scalar", lambda: (heads(1, 2, 3, 8), table(3, 8), rates())),
    _case("rope_norm", "float", lambda: (heads(1, 2, 3, 8), table(3, 4), 1.7)),
    _case("rope_norm", "padded", lambda: (heads(3, 2, 9, 8), table(9, 8, 3), rates(2, 1, 8))),
    _case("rope_norm", "one-token", lambda: (heads(2, 2, 1, 6), table(1, 4), rates(2, 1, 1))),
    _case(
        "rope_norm",
        "several-programs",
        lambda: (heads(1, 5, 35, 96), table(35, 48), rates(5, 1, 96)),
    ),
    _case("rope_norm", "zeros", heads_zeros),
    _case("rope_norm", "strided", heads_strided),
    _case("adam_project_", "sphere-rows", adam(7, 33, 1.0, Target("sphere", 1))),
    _case("adam_project_", "sphere-columns", adam(130, 20, 3.0, Target("sphere", 0, 1.5))),
    _case("adam_project_", "ball-rows", adam(5, 4100, 3.0, Target("ball", -1, 4.0))),
    _case("adam_project_", "ball-columns", adam(9, 17, 3.0, Target("ball", -2))),
    _case("adam_project_", "decoupled", adam(5, 12, 3.0, Target("ball", 1), decoupled=True)),
    _case("adam_project_", "no-decay", adam(5, 12, 900.0, Target("sphere", 0), decay=0.0)),
    _case(
        "adam_project_", "first-step", adam(5, 12, 1.0, Target("ball", 1, 100.0), lr=1.0, decay=0.0)
    ),
]

SMALLEST = [next(case for case in CASES if case.kernel == name) for name in REGISTRY]
"""One case of each kernel, for what takes long."""
