"""Which kernels there are, and when one takes the place of the plain function of its name.

| mode | does |
|---|---|
| `auto` | the kernel where it can serve and is fast, which is on a GPU; each refusal logged once |
| `off` | the plain function |
| `require` | the kernel, or a `UserError` that says why it cannot serve |

The mode belongs to the process: `use_kernels(mode)` sets it, `using_kernels(mode)` for a while.
Triton is imported when the first kernel serves. Under `TRITON_INTERPRET=1` kernels run on CPU
tensors too, slowly: for tests, so only with `require`.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

from unitsphere.errors import UserError

Mode = Literal["auto", "off", "require"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST_GPU = (8, 0)  # what Triton generates code for, by compute capability

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("unitsphere.kernels")


@dataclass(frozen=True)
class Kernel:
    """A kernel and the plain function whose name and signature it has."""

    plain: Callable[..., Any]
    refusal: Callable[..., str | None]
    """for the plain function's arguments: why the kernel cannot serve them, or None"""
    load: Callable[[], Callable[..., Any]]
    """imports Triton and returns the kernel"""

    @property
    def name(self) -> str:
        """The name that both have."""
        return self.plain.__name__


@dataclass
class _Setting:
    mode: Mode = "auto"


REGISTRY: dict[str, Kernel] = {}
_setting = _Setting()
_logged: set[tuple[str, str]] = set()


def register(kernel: Kernel) -> Kernel:
    """Put a kernel into `REGISTRY`, where the contract tests find it."""
    REGISTRY[kernel.name] = kernel
    return kernel


def mode() -> Mode:
    """The mode of this process."""
    return _setting.mode


def use_kernels(mode: Mode) -> None:
    """Set the mode of this process; UserError for an unknown name."""
    if mode not in get_args(Mode):
        raise UserError(f"kernels '{mode}' is not a mode: use {', '.join(get_args(Mode))}")
    _setting.mode = mode


@contextmanager
def using_kernels(mode: Mode) -> Iterator[None]:
    """Use `mode` inside the `with`, then the former one."""
    former = _setting.mode
    use_kernels(mode)
    try:
        yield
    finally:
        _setting.mode = former


def call(kernel: Kernel, first: Tensor, *others: Any) -> Any:
    """The kernel's result for these arguments, or the plain function's, as the mode says."""
    if serves(kernel, first, *others):
        return kernel.load()(first, *others)
    return kernel.plain(first, *others)


def serves(kernel: Kernel, first: Tensor, *others: Any) -> bool:
    """Whether the kernel takes these arguments; a refusal is logged, or raised by `require`."""
    if _setting.mode == "off":
        return False
    device = first.device
    reason = no_backend(device.type, device.index, _setting.mode)
    if reason is None:
        reason = kernel.refusal(first, *others)
    if reason is not None:
        refuse(kernel.name, reason, device.type)
    return reason is None


def refuse(name: str, reason: str, device: str) -> None:
    """Log once that the plain function takes the kernel's place, or raise UserError: `require`.

    A warning on a GPU; elsewhere no kernel is expected.
    """
    if _setting.mode == "require":
        raise UserError(f"kernels 'require', but {name} cannot run: {reason}; or use 'auto'")
    log_once(logging.WARNING if device == "cuda" else logging.INFO, name, reason)


def unfit(*tensors: Tensor) -> str | None:
    """Why such tensors are not for any kernel; None if they are."""
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            return f"{tensor.dtype} is not for kernels, which compute in fp32"
        if hasattr(tensor, "placements"):
            return "a tensor is distributed"
    return None


def _constant(function: Callable[P, R]) -> Callable[P, R]:
    """Let the compiler call the function as it traces, and take its answer for a constant.

    It is `torch.compiler.assume_constant_result`, which would import the compiler, and so Triton.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


@_constant
def no_backend(device: str, index: int | None, mode: Mode) -> str | None:
    """Why no kernel can run on the device; None if kernels can."""
    interpreted = device == "cpu" and mode == "require" and interpreting()
    if device != "cuda" and not interpreted:
        return f"the tensors are on {device}, and kernels need a GPU"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'unitsphere[kernels]'"
    if interpreted:
        return None
    if index != torch.cuda.current_device():
        return f"the tensors are on cuda:{index}, which is not the current device"
    if torch.version.hip is None and torch.cuda.get_device_capability(index) < OLDEST_GPU:
        return "the GPU is older than Triton supports (compute capability 8.0)"
    return None


@_constant
def log_once(level: int, name: str, reason: str) -> bool:
    """Log, the first time in this process, that the plain function takes a kernel's place."""
    if (name, reason) not in _logged:
        _logged.add((name, reason))
        log.log(level, "%s: the plain function, because %s", name, reason)
    return True


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
