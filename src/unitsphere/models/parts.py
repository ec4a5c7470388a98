"""The few modules that architectures share. Each declares its parameters (see constraint.py)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.models.constraint import Bound, Declaration, Role
from unitsphere.ops.fp8 import Bounded, fp8_linear
from unitsphere.ops.linear import lookup, scale_rows, scaled_linear
from unitsphere.ops.norm import cast, rms_norm, unit_norm
from unitsphere.ops.project import project_sphere_
from unitsphere.ops.residual import gate


def reset(module: nn.Module, generator: torch.Generator) -> None:
    """Set the parameters that the module owns to their start, if it owns any.

    On whatever device they are; random ones from the generator.
    """
    if callable(own := getattr(module, "reset", None)):
        own(generator)


def as_used(weight: Tensor, bound: Bound | None) -> Tensor:
    """The weight that the forward pass uses: normalised if its bound says so, else as stored."""
    return unit_norm(weight, bound.dim) if bound and bound.in_forward else weight


class Linear(nn.Module):
    """y = x Wᵀ (+ b), W [d_out, d_in] from N(0, std²), b from 0.

    `bound` must be given: None says that W is free; its `dim` is an axis of W. With `fp8` set
    (training does that) the products are made in FP8.
    """

    fp8: Bounded | None = None

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        std: float,
        bound: Bound | None,
        bias: bool = False,
        role: Role = "matrix",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
        self.std, self.bound = std, bound
        self.role: Role = role

    def forward(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """[..., d_in] -> [..., d_out], times `scale` [d_out] if there is one (and then no bias)."""
        if self.fp8 is not None:
            y = fp8_linear(x, self.matrix(), scale, self.fp8)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        if self.bias is not None:
            return F.linear(x, self.matrix(), self.bias)
        return scaled_linear(x, self.matrix(), scale)

    def matrix(self) -> Tensor:
        """W [d_out, d_in] as the forward pass uses it."""
        return as_used(self.weight, self.bound)

    def reset(self, generator: torch.Generator) -> None:
        """W from N(0, std²), b = 0."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @torch.no_grad()
    def fold(self, scale: Tensor | float) -> None:
        """W ← scale ⊙ W as it is used, no longer bounded: see `plans.fold_`."""
        self.weight.copy_(scale_rows(self.matrix(), scale))
        self.bound = None

    def declare(self) -> dict[str, Declaration]:
        """W by its role and bound; a bias is free."""
        return {"weight": Declaration(self.role, self.bound), "bias": Declaration("bias")}


class Matrices(NamedTuple):
    """How an architecture makes the matrices of a sublayer: their start and their constraint."""

    from_h: Callable[[int], Linear]
    """d_out -> W [d_out, d], which reads h (or the norm of h)"""
    to_h: Callable[[int], Linear]
    """d_in -> W [d, d_in], which makes the sublayer's output"""
    unit: bool = False
    """whether h and the rows of W are about 1 long, so that an element of W h is about 1/√d"""


class Embedding(nn.Module):
    """h = E[token], E [n, d] from N(0, std²). `bound` must be given: None says that E is free.

    With `length` each row is scaled to that length at the start, and free from then on.
    """

    def __init__(
        self, n: int, d: int, *, std: float, bound: Bound | None, length: float | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, d))
        self.std, self.bound, self.length = std, bound, length

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] int64 -> [..., d]."""
        return lookup(tokens, self.matrix())

    def matrix(self) -> Tensor:
        """E as the forward pass uses it; as a tied head too."""
        return as_used(self.weight, self.bound)

    @torch.no_grad()
    def fold(self, scale: Tensor | float) -> None:
        """E ← scale·E as it is used: see `plans.fold_`. A bound stays: E may still be unit."""
        self.weight.copy_(scale_rows(self.matrix(), scale))
        if self.bound is not None:
            self.bound = replace(self.bound, in_forward=False)

    def reset(self, generator: torch.Generator) -> None:
        """E from N(0, std²), its rows perhaps of one length."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)
        if self.length is not None:
            project_sphere_(self.weight, 1, self.length)

    def declare(self) -> dict[str, Declaration]:
        """The embedding by its bound."""
        return {"weight": Declaration("embedding", self.bound)}


ScaleForm = Literal["vector", "scalar", "fixed"]


@dataclass(frozen=True)
class ScaleConfig:
    """A scaling parameter: its form, and where it and its stored tensor start (nGPT §2.5)."""

    form: ScaleForm = "vector"
    """vector: one value an element; scalar: one for all; fixed: the constant init, not learned"""
    init: float = 1.0
    """s_init: the value that the forward pass starts with"""
    scale: float | None = None
    """s_scale: where the stored tensor starts, so how fast Adam moves it; none: 1/√d_model"""


class Scale(nn.Module):
    """A learned scale: a stored tensor ŝ that starts at s_scale, used as ŝ·(s_init/s_scale).

    Adam's steps have the size of the learning rate, so a small s_scale makes the effective
    value move fast (nGPT §2.5). With the form "fixed" there is no parameter.
    """

    def __init__(self, config: ScaleConfig, shape: tuple[int, ...], d_model: int) -> None:
        super().__init__()
        self.init = float(config.init)  # torch.compile knows no other kind of number
        self.start = 1 / math.sqrt(d_model) if config.scale is None else config.scale
        if config.form != "fixed" and (self.init == 0) != (self.start == 0):
            raise UserError(
                f"a scale with init {self.init} and scale {self.start} would always be 0 or "
                "infinite: make both 0 or neither"
            )
        self.factor = 1.0 if self.init == self.start else self.init / (self.start or 1.0)
        if config.form == "fixed":
            self.stored = None
        else:
            self.stored = nn.Parameter(torch.empty(shape if config.form == "vector" else ()))

    def forward(self) -> Tensor | float:
        """The effective value: `shape`, a scalar tensor, or the constant."""
        if self.stored is None:
            return self.init
        return self.stored if self.factor == 1 else self.stored * self.factor

    @torch.no_grad()
    def store_value(self) -> None:
        """Store the effective value, so that using it costs nothing: see `plans.fold_`."""
        if self.stored is not None:
            self.stored.mul_(self.factor)
            self.factor = 1.0

    def become_one(self) -> None:
        """Become the constant 1, once a weight is multiplied by the scale: see `plans.fold_`."""
        self.stored, self.init = None, 1.0

    def reset(self, generator: torch.Generator) -> None:
        """Set the stored tensor to s_scale, so that the effective value is s_init."""
        if self.stored is not None:
            nn.init.constant_(self.stored, self.start)

    def declare(self) -> dict[str, Declaration]:
        """The stored tensor is a scale."""
        return {"stored": Declaration("scale")}


class TokenShift(nn.Module):
    """e_t + 2σ(√d·⟨w, Norm(e_t)⟩)·s ⊙ e_{t−1} of the embeddings e of a token and of that before it.

    RWKV's token shift (arXiv 2305.13048), a number per channel, with the gate of modded-nanogpt's
    "smear", a number per token. s [d] and w [d] start at 0.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.root_d = math.sqrt(d)
        self.s, self.w = (Scale(ScaleConfig(init=0.0, scale=0.0), (d,), d) for _ in "sw")

    def forward(self, e: Tensor, before: Tensor) -> Tensor:
        """[batch, time, d] each -> [batch, time, d]."""
        s, w = torch.as_tensor(self.s()), torch.as_tensor(self.w())
        return e + gate(unit_norm(e), cast(s, e.dtype) * before, self.root_d * w)


class BigramEmbedding(nn.Module):
    """h + s ⊙ W_2 E_2[row] of the pair of a token and the one before it: E_2 [rows, dim], s [d].

    A hash of the pair chooses the row (`bigram_rows`), so pairs share rows. E_2 starts from
    N(0, std²), s from `start`. modded-nanogpt's bigram hash embedding, also a part of Engram
    (arXiv 2601.07372); here it is narrow, W_2 [d, dim] widens it, and only the first h has it.
    """

    def __init__(
        self, rows: int, dim: int, W_2: Linear, *, std: float, bound: Bound | None, start: float
    ) -> None:
        super().__init__()
        if rows < 0:
            raise UserError(f"model.bigram_rows must be 0 or more: {rows}")
        self.E_2, self.W_2 = Embedding(rows, dim, std=std, bound=bound), W_2
        d = W_2.weight.shape[0]
        self.s = Scale(ScaleConfig(init=start, scale=start), (d,), d)

    def rows(self, tokens: Tensor, before: Tensor) -> Tensor:
        """E_2[row] of the pairs, [batch, time, dim], for int64 [batch, time] each."""
        return self.E_2(bigram_rows(tokens, before, len(self.E_2.weight)))

    def forward(self, h: Tensor, rows: Tensor, first: Tensor) -> Tensor:
        """h [batch, time, d] with what the pairs' `rows` add.

        first: bool [..., time, 1], true for a token that has none before it, which keeps its h.
        """
        return h + cast(self.s() * self.made(rows), h.dtype).masked_fill(first, 0.0)

    def made(self, rows: Tensor) -> Tensor:
        """W_2 E_2[row], [batch, time, d]."""
        return self.W_2(rows)


class UnitBigramEmbedding(BigramEmbedding):
    """The same with Norm(W_2 E_2[row]), for an h of unit vectors."""

    def made(self, rows: Tensor) -> Tensor:
        """Norm(W_2 E_2[row]), [batch, time, d]."""
        return unit_norm(super().made(rows))


def bigram_rows(tokens: Tensor, before: Tensor, rows: int) -> Tensor:
    """The row of each pair, from 0 to `rows` − 1, int64 as tokens and before.

    48,271·(before·2¹⁸ + token) mod 2³¹ − 1, mod rows: a step of a known generator of random numbers
    (Park and Miller), so that similar pairs are far apart.

    >>> bigram_rows(torch.tensor([5, 6]), torch.tensor([7, 7]), 1000).tolist()
    [996, 267]
    """
    return (48_271 * (before * 2**18 + tokens)) % (2**31 - 1) % rows


LogitGain = Literal["head", "layer", "fixed"]


def logit_gain(form: LogitGain, start: float | None, n_heads: int, d_k: int) -> Scale:
    """anGPT's g, the factor of the attention logits under QK norm: per head, per layer, or fixed.

    It starts at √d_k, which gives the logits unit variance, unless `start` says otherwise.
    """
    forms: dict[LogitGain, ScaleForm] = {"head": "vector", "layer": "scalar", "fixed": "fixed"}
    value = math.sqrt(d_k) if start is None else start
    return Scale(ScaleConfig(forms[form], value, value), (n_heads, 1, 1), d_k)


class RMSNorm(nn.Module):
    """gain ⊙ x/rms(x), gain [d] starting at 1."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return rms_norm(x, self.gain, self.eps)

    @torch.no_grad()
    def fold(self, scale: float) -> None:
        """gain ← scale·gain: see `plans.fold_`."""
        self.gain.mul_(scale)

    def reset(self, generator: torch.Generator) -> None:
        """The gain starts at 1."""
        nn.init.ones_(self.gain)

    def declare(self) -> dict[str, Declaration]:
        """The gain is free of weight decay."""
        return {"gain": Declaration("gain")}


class LayerNorm(nn.Module):
    """gain ⊙ (x − mean)/√(var + eps) + bias along the last axis; gain 1 and bias 0 at the start."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(d))
        self.bias = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d], the statistics in fp32."""
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)

    def reset(self, generator: torch.Generator) -> None:
        """Gain 1, bias 0."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def declare(self) -> dict[str, Declaration]:
        """Both are free of weight decay."""
        return {"gain": Declaration("gain"), "bias": Declaration("bias")}
