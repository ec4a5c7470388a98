"""The activations that the papers use, and the factor that restores their variance."""

import functools
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def relu2(x: Tensor) -> Tensor:
    """ReLU(x)² (So et al. 2021; NormFormer's 2.7B runs)."""
    return F.relu(x).square()


def swiglu(u: Tensor, nu: Tensor) -> Tensor:
    """u ⊙ SiLU(ν) (nGPT eq. 18)."""
    return u * F.silu(nu)


def soft_capped(z: Tensor, cap: float | None) -> Tensor:
    """c·z/√(c² + z²), between −c and c, of the cap c; z itself if there is none."""
    return z if cap is None else cap * z * torch.rsqrt(z.square() + cap**2)


def soft_cap_(z: Tensor, cap: float) -> Tensor:
    """`soft_capped` in place; returns its slope, c³/(c² + z²)^(3/2)."""
    root = z.square().add_(cap**2).rsqrt_().mul_(cap)
    z.mul_(root)
    return root.pow_(3)


Activation = Literal["silu", "gelu", "relu2"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu2": relu2,
}


@functools.cache
def nu_acf(activation: Activation, std: float) -> float:
    """ν_acf = 1/√E f(x)² for x ~ N(0, std²), by Gauss–Hermite quadrature (anGPT §4.3).

    >>> round(nu_acf("silu", 0.5), 5)
    3.72035
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(128)
    # On the CPU by name: a model is laid out under the meta device.
    f = ACTIVATIONS[activation](torch.tensor(std * nodes, device="cpu")).numpy()
    return 1 / math.sqrt(np.sum(weights * f**2) / math.sqrt(2 * math.pi))
