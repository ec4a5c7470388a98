"""nGPT: every vector on the unit hypersphere (arXiv 2410.01131, ICLR 2025).

| step | formula | equation | method |
|---|---|---|---|
| embed | h = E_in[token] | 2.1 | `NGPT.embed` |
| attention | q, k, v = W_q h, W_k h, W_v h; RoPE on q, k per head | 12 | `Attention` |
| | q = Norm(q)·s_qk; k = Norm(k)·s_qk | 15, 16 | |
| | softmax(q kᵀ·√d_k + M) v; h_A = W_o(heads) | 13, 14 | |
| residual | h = Norm(h + α_A ⊙ (Norm(h_A) − h)) | 10 | `Block.forward` |
| across | k, v of the encoder's h, no RoPE; h = Norm(h + α_X ⊙ (Norm(h_X) − h)) | | |
| MLP | u = (W_u h)·s_u; ν = (W_ν h)·s_ν·√d; h_M = W_oMLP(u ⊙ SiLU(ν)) | 17–21 | `MLP` |
| residual | h = Norm(h + α_M ⊙ (Norm(h_M) − h)) | 11 | `Block.forward` |
| logits | z = s_z ⊙ (E_out h) | 1, 3 | `NGPT.head` |

Constraint (§2.6, step 2): every matrix is a set of unit vectors of length d, all of them along
their in axis (dim 1), W_o and W_oMLP along their out axis (dim 0). Scales: §2.5, `Scale`.
Matrices start at N(0, 1/d), output matrices ÷√(2L), then are normalised (A.6). Cross-attention is
an extension of this project by the paper's own rule; the encoder's h, a unit vector, is its memory.

The anGPT paper (arXiv 2505.22014, Figure 5) takes two of the norms away: `residual = "lerp_nu"`
puts the constant ν(α) in place of the outer Norm, `bound = "ball"` is ‖w‖ ≤ 1 on the same axes.
Two are this project's: `residual = "add"`, h = Norm(h + α ⊙ h_A), without Norm(h_A), and so for
h_M; and `residual = "gated"`, which takes h_A times 2σ(⟨w_A, h⟩) in its place, one number a token.
One scalar s_u cancels in Norm(h_M), so a scalar of its own or shared with s_ν is the same model
(but for these two).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from unitsphere.kernels import lerp_norm
from unitsphere.models.constraint import Bound, Kind
from unitsphere.models.context import Context
from unitsphere.models.cuts import Cut
from unitsphere.models.parts import (
    Embedding,
    Linear,
    Scale,
    ScaleConfig,
    head_size,
    kv_heads,
    mlp_size,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import swiglu
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.residual import LONGEST, add_norm, gate, lerp, riemannian, slerp

RESIDUALS = {
    "lerp": lerp_norm,
    "slerp": slerp,
    "riemannian": riemannian,
    "lerp_nu": lerp,
    "add": add_norm,
    "gated": add_norm,
}


@dataclass(frozen=True)
class NGPTConfig:
    """nGPT's numbers; the defaults are the paper's (§2.6)."""

    vocab_size: int | None = None
    """V; none: as the tokenizer, rounded up to a multiple of 64"""
    d_model: int = 128
    """width of the hidden state"""
    n_layers: int = 4
    """blocks"""
    n_heads: int = 4
    """attention heads; must divide d_model"""
    n_kv_heads: int | None = None
    """heads of keys and values, each for n_heads/n_kv_heads heads of queries; none: n_heads"""
    window: int | None = None
    """tokens that one sees: itself and those before it, in an encoder on either side; none: all"""
    d_ff: int | None = None
    """width of the MLP; none: 4·d_model"""
    alpha: ScaleConfig = ScaleConfig(init=0.05)
    """eigen learning rates α_A and α_M (and α_X across), [d] per layer"""
    s_qk: ScaleConfig = ScaleConfig(init=1.0)
    """scale of q and k, [n_kv_heads, d_k] per layer, shared by a key and its queries"""
    s_u: ScaleConfig = ScaleConfig(init=1.0, scale=1.0)
    """scale of u, [d_ff] per layer"""
    s_nu: ScaleConfig = ScaleConfig(init=1.0, scale=1.0)
    """scale of ν, [d_ff] per layer"""
    s_z: ScaleConfig = ScaleConfig(init=1.0)
    """scale of the logits, [V]"""
    signed_alpha: bool = False
    """use α as it is instead of |α| (A.2)"""
    residual: Literal["lerp", "slerp", "riemannian", "lerp_nu", "add", "gated"] = "lerp"
    """how h moves: eq. 7, eq. 6, eq. 29 and 30 (A.4), by ν(α) instead of Norm (anGPT), by
    Norm(h + α ⊙ h_A) without Norm(h_A) (this project's), or so with h_A times 2σ(⟨w_A, h⟩)"""
    qk_norm: bool = True
    """normalise q and k (eq. 15, 16); off leaves s_qk and √d_k as they are (Table 6)"""
    bound: Kind = "sphere"
    """‖w‖ = 1, or ‖w‖ ≤ 1 ("ball": the anGPT paper's nGPT with parameter bounding)"""
    normalize_in_forward: bool = False
    """normalise the weights in the forward pass too (optional in §2.6, step 2)"""
    rotary_fraction: float = 1.0
    """share of each head that RoPE rotates; the anGPT paper's nGPT rotates the first half"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    tied: bool = False
    """use the input embedding as output head"""


def bound(config: NGPTConfig, dim: int) -> Bound:
    """The constraint of a matrix whose vectors of length d lie along `dim`."""
    return Bound(dim, config.bound, in_forward=config.normalize_in_forward)


def h_bound(config: NGPTConfig) -> float:
    """Beyond what no element of h lies, nor of v = W_v h and of means of v's, the heads."""
    return LONGEST if config.residual == "lerp_nu" else 1.0


class Attention(nn.Module):
    """h_A before its norm (eq. 12–16): h looks at itself, or across at a memory."""

    cuts: ClassVar[dict[str, Cut]] = {
        "W_q": "columns",
        "W_k": "columns",
        "W_v": "columns",
        "W_o": "rows",
        "s_qk": "heads",
    }

    def __init__(self, config: NGPTConfig, layer: int, std_out: float) -> None:
        super().__init__()
        d, self.n_heads, self.layer = config.d_model, config.n_heads, layer
        self.n_kv_heads = kv_heads(config.n_heads, config.n_kv_heads)
        self.d_k, self.qk_norm = head_size(d, config.n_heads), config.qk_norm
        in_axis, out_axis = bound(config, dim=1), bound(config, dim=0)
        std = 1 / math.sqrt(d)

        def of_h(d_out: int) -> Linear:
            return Linear(d, d_out, std=std, bound=in_axis, input_bound=h_bound(config))

        d_kv = self.n_kv_heads * self.d_k
        self.W_q, self.W_k, self.W_v = of_h(d), of_h(d_kv), of_h(d_kv)
        self.W_o = Linear(d, d, std=std_out, bound=out_axis, input_bound=h_bound(config))
        self.s_qk = Scale(config.s_qk, (self.n_kv_heads, 1, self.d_k), d)

    def forward(self, h: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        s_qk = shared(self.s_qk(), self.n_heads // self.n_kv_heads)
        q = self.scaled(split_heads(self.W_q(h), self.n_heads), s_qk, context)
        k, v = context.keys_values(self.layer, h, self.keys_values)
        return self.W_o(merge_heads(context.attend(q, k, v, scale=math.sqrt(self.d_k))))

    def keys_values(self, h: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k and v of h, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(h), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return self.scaled(k, self.s_qk(), context), v

    def scaled(self, x: Tensor, s_qk: Tensor | float, context: Context) -> Tensor:
        """Norm(RoPE(x))·s_qk for heads x (eq. 15, 16)."""
        return context.rotate_norm(x, s_qk) if self.qk_norm else context.rotate(x) * s_qk


def shared(s_qk: Tensor | float, group: int) -> Tensor | float:
    """s_qk of the query heads, [H, 1, d_k], of that of their keys, [H_kv, 1, d_k]."""
    if group == 1 or not isinstance(s_qk, Tensor) or s_qk.dim() == 0:
        return s_qk
    return s_qk.repeat_interleave(group, dim=0)


class MLP(nn.Module):
    """h_M before its norm (eq. 17–21)."""

    cuts: ClassVar[dict[str, Cut]] = {
        "W_u": "columns",
        "W_nu": "columns",
        "W_oMLP": "rows",
        "s_u": "units",
        "s_nu": "units",
    }

    def __init__(self, config: NGPTConfig, std_out: float) -> None:
        super().__init__()
        d = config.d_model
        d_ff, self.root_d = mlp_size(config.d_ff, d), math.sqrt(d)
        in_axis, out_axis = bound(config, dim=1), bound(config, dim=0)
        std = 1 / math.sqrt(d)
        self.W_u, self.W_nu = (
            Linear(d, d_ff, std=std, bound=in_axis, input_bound=h_bound(config)) for _ in range(2)
        )
        self.W_oMLP = Linear(d_ff, d, std=std_out, bound=out_axis)
        self.s_u, self.s_nu = Scale(config.s_u, (d_ff,), d), Scale(config.s_nu, (d_ff,), d)

    def forward(self, h: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        u = self.W_u(h, self.s_u())
        nu = self.W_nu(h, self.s_nu() * self.root_d)
        return self.W_oMLP(swiglu(u, nu))

    def fold(self) -> None:
        """s_u and s_ν·√d into W_u and W_ν."""
        self.W_u.absorb(self.s_u())
        self.W_nu.absorb(self.s_nu() * self.root_d)
        self.s_u.spend()
        self.s_nu.spend()
        self.root_d = 1.0


class Rate(Scale):
    """An eigen learning rate: |α|, or α itself if signed."""

    def __init__(self, config: NGPTConfig) -> None:
        super().__init__(config.alpha, (config.d_model,), config.d_model)
        self.signed = config.signed_alpha

    def forward(self) -> Tensor | float:
        """[d], a scalar tensor, or the constant."""
        alpha = super().forward()
        return alpha if self.signed else abs(alpha)

    @torch.no_grad()
    def fold(self) -> None:
        """|α| in place of α."""
        if self.stored is not None:
            self.stored.copy_(self())
            self.factor, self.signed = 1.0, True


def gate_vector(config: NGPTConfig) -> Scale | None:
    """w [d] of a sublayer's gate, from 0, so that the gate starts at 1; none unless "gated"."""
    d = config.d_model
    return Scale(ScaleConfig(init=0.0, scale=0.0), (d,), d) if config.residual == "gated" else None


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP, each a step of h on the sphere."""

    readers: ClassVar[dict[str, str]] = {"attention": "attention", "cross": "cross", "mlp": "mlp"}
    cross: Attention
    alpha_X: Rate
    w_X: Scale | None

    def __init__(self, config: NGPTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        std_out = output_std(1 / math.sqrt(config.d_model), config.n_layers, cross)
        self.residual = RESIDUALS[config.residual]
        self.attention, self.alpha_A = Attention(config, layer, std_out), Rate(config)
        self.mlp, self.alpha_M = MLP(config, std_out), Rate(config)
        self.w_A, self.w_M = gate_vector(config), gate_vector(config)
        if cross:
            self.cross, self.alpha_X = Attention(config, layer, std_out), Rate(config)
            self.w_X = gate_vector(config)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d], unit vectors both."""
        h = self.step(h, self.attention(h, context), self.alpha_A, self.w_A)  # eq. 10
        if across is not None:
            h = self.step(h, self.cross(h, across), self.alpha_X, self.w_X)
        return self.step(h, self.mlp(h), self.alpha_M, self.w_M)  # eq. 11

    def step(self, h: Tensor, x: Tensor, alpha: Rate, w: Scale | None) -> Tensor:
        """h moved by the output x of a sublayer that read h."""
        if w is not None:
            x = gate(h, x, torch.as_tensor(w()))
        return self.residual(h, x, alpha())


class NGPT(Transformer):
    """The model of the table above."""

    cuts: ClassVar[dict[str, Cut]] = {
        "E_in": "vocabulary",
        "E_out": "vocabulary",
        "s_z": "vocabulary",
    }

    def __init__(self, config: NGPTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V = config.d_model, vocabulary(config.vocab_size)
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        std, rows = 1 / math.sqrt(d), bound(config, dim=1)
        self.E_in = Embedding(V, d, std=std, bound=rows)
        self.blocks, self.encoder = self.stacks(Block)
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=rows, role="head")
        self.s_z = Scale(config.s_z, (V,), d)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token], unit rows; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = s_z ⊙ (E_out h) (eq. 1, 3)."""
        return Head((self.E_out or self.E_in).matrix(), self.s_z())

    def fold(self) -> None:
        """s_z into an output head of its own; a tied one is the embedding too."""
        if self.E_out is not None:
            self.E_out.absorb(self.s_z())
            self.s_z.spend()
