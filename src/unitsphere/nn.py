"""The sublayers of nGPT for your own model: each works by itself, its weights on unit spheres.

    from unitsphere.nn import NormalizedAttention, NormalizedMLP, SphereResidual, UnitEmbedding

| name | what | shapes |
|---|---|---|
| `unit_norm(x)`, `UnitNorm` | x/‖x‖ along an axis, the length in fp32 | any -> the same |
| `UnitLinear` | y = x Wᵀ, the rows (or columns) of W unit vectors | [..., d_in] -> [..., d_out] |
| `UnitEmbedding` | rows of a table of unit vectors | [...] int64 -> [..., d] |
| `Scale` | a learned scale with its own learning rate (§2.5) | () -> shape |
| `SphereResidual` | Norm(h + α ⊙ (Norm(x) − h)), eq. 10, 11 | [..., d] twice -> [..., d] |
| `NormalizedAttention` | eq. 12–16 | [batch, time, d] -> the same |
| `NormalizedMLP` | eq. 17–21 | [..., d] -> the same |

Weights start as unit vectors, drawn after `torch.manual_seed`.
`unitsphere.constrain(model, optimizer)` keeps them so in training. Every parameter of the model
must be declared for it: these modules declare theirs; use `free(module)` for a module without a
constraint, and `declare(module, weight=Bound(dim=1))` for one of torch's modules that gets one.
"""

import math
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.kernels import lerp_norm
from unitsphere.models import ngpt, parts
from unitsphere.models.config import rotary_size
from unitsphere.models.constraint import Bound, Declaration, declares, normalize_
from unitsphere.models.context import SelfContext
from unitsphere.models.parts import ScaleConfig, reset
from unitsphere.ops.attention import check_mask
from unitsphere.ops.norm import unit_norm
from unitsphere.ops.rope import rope_table

__all__ = [
    "Bound",
    "NormalizedAttention",
    "NormalizedMLP",
    "Scale",
    "SphereResidual",
    "UnitEmbedding",
    "UnitLinear",
    "UnitNorm",
    "declare",
    "free",
    "unit_norm",
]

Module = TypeVar("Module", bound=nn.Module)


class UnitNorm(nn.Module):
    """x/‖x‖ along `dim`, nGPT's Norm; a zero vector stays zero. No parameters."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same, in x's dtype."""
        return unit_norm(x, self.dim)


class UnitLinear(parts.Linear):
    """y = x Wᵀ for W [d_out, d_in] of unit vectors, no bias.

    `dim` is their axis: 1 for rows of length d_in (what reads h), 0 for columns of length d_out
    (what writes to h), so that in nGPT all have the length d_model.
    """

    def __init__(self, d_in: int, d_out: int, dim: int = 1) -> None:
        super().__init__(d_in, d_out, std=1 / math.sqrt(d_in), bound=Bound(dim))
        _start(self)


class UnitEmbedding(parts.Embedding):
    """Row `token` of E [n, d], whose rows are unit vectors: [...] int64 -> [..., d]."""

    def __init__(self, n: int, d: int) -> None:
        super().__init__(n, d, std=1 / math.sqrt(d), bound=Bound(dim=1))
        _start(self)


class Scale(parts.Scale):
    """A learned scale of `shape` that begins at `init`; called without arguments, it is its value.

    What is stored begins at `start`, and the value is stored·(init/start): Adam's steps have the
    size of the learning rate, so a small `start` makes the value move fast (nGPT §2.5, which takes
    1/√d_model for most of its scales). `start` is `init` unless given.
    """

    def __init__(self, *shape: int, init: float = 1.0, start: float | None = None) -> None:
        super().__init__(ScaleConfig(init=init, scale=init if start is None else start), shape, 1)
        _start(self)


class SphereResidual(nn.Module):
    """h = Norm(h + α ⊙ (Norm(x) − h)): a step on the sphere towards a sublayer's output x.

    The eigen learning rates α [d] begin at `alpha` and are used as |α| (nGPT eq. 10, 11); the paper
    begins at about 1/(number of layers).
    """

    def __init__(self, d: int, alpha: float = 0.05) -> None:
        super().__init__()
        config = ngpt.NGPTConfig(d_model=d, alpha=ScaleConfig(init=alpha))
        self.alpha = ngpt.Rate(config)
        _start(self)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """h, x [..., d] -> [..., d], unit vectors, in h's dtype."""
        return lerp_norm(h, x, self.alpha())


class NormalizedAttention(nn.Module):
    """nGPT's attention with n_heads heads of d/n_heads dimensions (eq. 12–16), before its Norm.

    q and k are unit vectors per head times s_qk, their products are times √d_k. Keys and values
    may have fewer heads (`n_kv_heads`). `rotary_fraction` is the share of each head that RoPE
    turns by its position, 0 for none: where a model adds positions itself. UserError if the heads
    do not divide d.
    """

    def __init__(
        self,
        d: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        causal: bool = False,
        rotary_fraction: float = 1.0,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__()
        config = ngpt.NGPTConfig(d_model=d, n_heads=n_heads, n_kv_heads=n_kv_heads)
        self.attention = ngpt.Attention(config, ngpt.matrices(config, 1 / math.sqrt(d)))
        self.causal, self.rope_base = causal, rope_base
        self.d_rot = rotary_size(self.attention.d_k, rotary_fraction)
        _start(self)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d].

        `mask` (bool, broadcast to [batch, 1, time, time]) is true where a query may look, in place
        of what `causal` says; every query must see something. UserError for one of numbers.
        """
        check_mask(mask)
        positions = torch.arange(h.shape[1], device=h.device)
        wide = torch.promote_types(h.dtype, torch.float32)
        table = rope_table(positions, self.d_rot, self.rope_base, wide)
        return self.attention(h, SelfContext(positions, table, mask, self.causal))


class NormalizedMLP(nn.Module):
    """nGPT's SwiGLU of width d_ff, by default 4d (eq. 17–21), before its Norm: [..., d] -> same."""

    def __init__(self, d: int, d_ff: int | None = None) -> None:
        super().__init__()
        config = ngpt.NGPTConfig(d_model=d, d_ff=d_ff)
        self.mlp = ngpt.MLP(config, ngpt.matrices(config, 1 / math.sqrt(d)))
        _start(self)

    def forward(self, h: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return self.mlp(h)


def declare(module: Module, **bounds: Bound | None) -> Module:
    """The module, its own parameters declared by name: bounded, or None for a free one.

    >>> declare(nn.Linear(16, 64), weight=Bound(dim=1), bias=None)

    Optimizers take what is bounded for an embedding in a torch.nn.Embedding, elsewhere for a
    matrix, and what is free for a gain. UserError for a name that the module has no parameter of.
    """
    own = [name for name, _ in module.named_parameters(recurse=False)]
    for name in bounds:
        if name not in own:
            raise UserError(f"{type(module).__name__} has no parameter '{name}' of its own: {own}")
    role = "embedding" if isinstance(module, nn.Embedding) else "matrix"
    found = {
        name: Declaration("gain" if bound is None else role, bound)
        for name, bound in bounds.items()
    }
    module.declare = partial(dict, found)  # pyright: ignore[reportArgumentType]
    return module


def free(module: Module) -> Module:
    """The module, all parameters in it declared free but those that modules in it declare."""
    for part in module.modules():
        own = {name: Declaration("gain") for name, _ in part.named_parameters(recurse=False)}
        declared = part.declare() if declares(part) else {}
        if own.keys() - declared.keys():
            part.declare = partial(dict, own | declared)  # pyright: ignore[reportArgumentType]
    return module


def _start(module: nn.Module) -> None:
    """Draw the parameters and put what is bounded on its sphere; on the meta device, nothing."""
    device = next(module.parameters()).device
    if device.type == "meta":
        return
    generator = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
    for part in module.modules():
        reset(part, generator)
    with torch.no_grad():
        normalize_(module)
