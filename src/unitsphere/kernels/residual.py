"""The step of nGPT's hidden state as one kernel (see `ops.residual`)."""

from collections.abc import Callable

from torch import Tensor

from unitsphere.kernels.registry import Kernel, call, register, unfit
from unitsphere.ops import residual as plain

LONGEST = 8192  # a program holds whole rows in registers


def lerp_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step from h towards Norm(x) by α, back onto the sphere (nGPT eq. 10), in h's dtype."""
    return call(LERP_NORM, h, x, alpha)


def _refusal(h: Tensor, x: Tensor, alpha: Tensor | float) -> str | None:
    if h.shape != x.shape:
        return "h and x differ in shape"
    d = h.shape[-1]
    if d > LONGEST:
        return f"vectors are longer than {LONGEST}"
    if h.numel() == 0:
        return "there are no elements"
    if not isinstance(alpha, Tensor):
        return unfit(h, x)
    if alpha.shape not in ((), (d,)):
        return "α is neither a scalar nor a vector of h's width"
    return unfit(h, x, alpha)


def _load() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.residual import lerp_norm

    return lerp_norm


LERP_NORM = register(Kernel(plain.lerp_norm, _refusal, _load))
