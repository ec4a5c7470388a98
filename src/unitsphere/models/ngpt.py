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

`residual` has other rules for h's step (`models.variants`). `bound = "ball"` is ‖w‖ ≤ 1 on the same
axes (the anGPT paper's nGPT with parameter bounding, arXiv 2505.22014, Figure 5). One scalar s_u
cancels in Norm(h_M), so it makes no difference whether s_u and s_ν, as scalars, are shared
(but for the residuals `add` and `gated`, which leave that norm out).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from unitsphere.kernels import lerp_norm
from unitsphere.models import variants
from unitsphere.models.config import (
    ModelConfig,
    bigram_size,
    head_size,
    mlp_size,
    offset_start,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.constraint import Bound, BoundKind
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import (
    Embedding,
    Linear,
    Scale,
    ScaleConfig,
    TokenShift,
    UnitBigramEmbedding,
)
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.models.variants import Residual
from unitsphere.ops.activations import swiglu
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.norm import unit_norm


@dataclass(frozen=True)
class NGPTConfig(ModelConfig):
    """nGPT's numbers; the defaults are the paper's (§2.6)."""

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
    residual: Residual = "lerp"
    """how h moves: eq. 7, eq. 6, eq. 29 and 30 (A.4), by ν(α) instead of Norm (anGPT), by
    Norm(h + α ⊙ h_A) without Norm(h_A) (this project's), or so with h_A times 2σ(⟨w_A, h⟩)"""
    qk_norm: bool = True
    """normalise q and k (eq. 15, 16); off leaves s_qk and √d_k as they are (Table 6)"""
    bound: BoundKind = "sphere"
    """‖w‖ = 1, or ‖w‖ ≤ 1 ("ball": the anGPT paper's nGPT with parameter bounding)"""
    normalize_in_forward: bool = False
    """normalise the weights in the forward pass too (optional in §2.6, step 2)"""
    rotary_fraction: float = 1.0
    """share of each head that RoPE rotates; the anGPT paper's nGPT rotates the first half"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    value_embeddings: bool = False
    """every second layer has an embedding E_v, which it adds to the values: v + s_v ⊙ E_v[token],
    with rows of length 1 (this project's)"""
    token_shift: bool = False
    """h = Norm(e_t + γ_t s ⊙ e_{t−1}) of the embeddings e of a token and of the one before it, s
    from 0; γ_t = 2σ(√d·⟨w, e_t⟩) (this project's)"""
    bigram_rows: int = 0
    """rows of an embedding E_2 of the pair of a token and the one before it, a hash chooses which:
    Norm(h + s_2 ⊙ Norm(W_2 E_2[row])), s_2 from 0; 0: none (this project's)"""
    bigram_dim: int | None = None
    """width of E_2; none: a quarter of d_model"""
    key_offset: bool = False
    """the dimensions of a key that RoPE does not rotate are those of the token before, so that one
    layer finds what followed the same token earlier; needs `rotary_fraction` between 0 and 1"""


def bound(config: NGPTConfig, dim: int) -> Bound:
    """The constraint of a matrix whose vectors of length d are along `dim`."""
    return Bound(dim, config.bound, in_forward=config.normalize_in_forward)


def matrices(config: NGPTConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer: unit rows where they read h, unit columns where they write (§2.6)."""
    d, std = config.d_model, 1 / math.sqrt(config.d_model)
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=bound(config, dim=1)),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=bound(config, dim=0)),
        unit=True,
    )


class Attention(AttentionMixer):
    """h_A before its norm (eq. 12–16): h looks at itself, or across at a memory."""

    def __init__(self, config: NGPTConfig, W: Matrices, layer: int | None = None) -> None:
        super().__init__(config)
        self.qk_norm = config.qk_norm
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_o = W.to_h(self.d_q)
        self.s_qk = Scale(config.s_qk, (self.n_kv_heads, 1, self.d_k), config.d_model)
        if config.value_embeddings:
            std = 1 / math.sqrt(config.d_model)
            self.embed_values(config, layer, std=std, bound=bound(config, dim=1))
        if config.key_offset:
            self.offset = offset_start(self.d_k, config.rotary_fraction)

    def forward(self, h: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        s_qk = shared(self.s_qk(), self.n_heads // self.n_kv_heads)
        q = self.scaled(split_heads(self.W_q(h), self.n_heads), s_qk, context)
        k, v = context.keys_values(h, self.keys_values, self.offset)
        return self.W_o(merge_heads(context.attend(q, k, v, scale=math.sqrt(self.d_k))))

    def keys_values(self, h: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k and v of h, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(h), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return self.scaled(k, self.s_qk(), context), self.with_tokens(v, context)

    def scaled(self, x: Tensor, s_qk: Tensor | float, context: Context) -> Tensor:
        """Norm(RoPE(x))·s_qk for heads x (eq. 15, 16)."""
        return context.rotate_norm(x, s_qk) if self.qk_norm else context.rotate(x) * s_qk


def shared(s_qk: Tensor | float, group: int) -> Tensor | float:
    """s_qk of the query heads, [H, 1, d_k], from that of their keys, [H_kv, 1, d_k]."""
    if group == 1 or not isinstance(s_qk, Tensor) or s_qk.dim() == 0:
        return s_qk
    return s_qk.repeat_interleave(group, dim=0)


class MLP(nn.Module):
    """h_M before its norm (eq. 17–21)."""

    def __init__(self, config: NGPTConfig, W: Matrices) -> None:
        super().__init__()
        d, d_ff = config.d_model, mlp_size(config.d_ff, config.d_model)
        self.root_d = math.sqrt(d)
        self.W_u, self.W_nu, self.W_oMLP = W.from_h(d_ff), W.from_h(d_ff), W.to_h(d_ff)
        self.s_u, self.s_nu = Scale(config.s_u, (d_ff,), d), Scale(config.s_nu, (d_ff,), d)

    def forward(self, h: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        u = self.W_u(h, self.s_u())
        nu = self.W_nu(h, self.s_nu() * self.root_d)
        return self.W_oMLP(swiglu(u, nu))


class Rate(Scale):
    """An eigen learning rate: |α|, or α itself if signed."""

    def __init__(self, config: NGPTConfig) -> None:
        super().__init__(config.alpha, (config.d_model,), config.d_model)
        self.signed = config.signed_alpha

    def forward(self) -> Tensor | float:
        """[d], a scalar tensor, or the constant."""
        alpha = super().forward()
        return alpha if self.signed else abs(alpha)


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP, each a step of h on the sphere."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "attention",
        "cross": "cross",
        "mlp": "mlp",
    }
    cross: Attention
    alpha_X: Rate
    w_X: Scale | None

    def __init__(self, config: NGPTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, self.residual = config.d_model, config.residual
        W = matrices(config, output_std(1 / math.sqrt(d), config.n_layers, cross))
        attention = partial(Attention, layer=layer)
        self.attention, self.alpha_A = build_mixer(config, layer, W, attention), Rate(config)
        self.mlp, self.alpha_M = build_mlp(config, W, MLP), Rate(config)
        gated = config.residual == "gated"
        self.w_A, self.w_M = variants.gate_vector(gated, d), variants.gate_vector(gated, d)
        if cross:
            self.cross, self.alpha_X = Attention(config, W), Rate(config)
            self.w_X = variants.gate_vector(gated, d)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d], unit vectors both.

        `lerp_norm(h, x, α)` is Norm(h + α ⊙ (Norm(x) − h)), in one kernel where there is one.
        """
        if self.residual != "lerp":  # a rule that is not the paper's
            return variants.forward(self, h, context, across)
        h_A = self.attention(h, context)  # eq. 12–16
        h = lerp_norm(h, h_A, self.alpha_A())  # eq. 10: h = Norm(h + α_A ⊙ (Norm(h_A) − h))
        if across is not None:
            h_X = self.cross(h, across)
            h = lerp_norm(h, h_X, self.alpha_X())  # h = Norm(h + α_X ⊙ (Norm(h_X) − h))
        h_M = self.mlp(h)  # eq. 17–21
        return lerp_norm(h, h_M, self.alpha_M())  # eq. 11: h = Norm(h + α_M ⊙ (Norm(h_M) − h))


class UnitTokenShift(TokenShift):
    """Norm of that: h stays on the sphere."""

    def forward(self, e: Tensor, before: Tensor) -> Tensor:
        """[batch, time, d] each -> unit vectors [batch, time, d]."""
        return unit_norm(super().forward(e, before))


class SphereBigrams(UnitBigramEmbedding):
    """Norm of that: h stays on the sphere."""

    def forward(self, h: Tensor, rows: Tensor, first: Tensor) -> Tensor:
        """As `BigramEmbedding`, unit vectors."""
        return unit_norm(super().forward(h, rows, first))


class NGPT(Transformer):
    """The model of the table above."""

    def __init__(self, config: NGPTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V = config.d_model, vocabulary(config.vocab_size)
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        std, rows = 1 / math.sqrt(d), bound(config, dim=1)
        self.E_in = Embedding(V, d, std=std, bound=rows)
        self.shift = UnitTokenShift(d) if config.token_shift else None
        if config.bigram_rows:
            dim = bigram_size(config.bigram_dim, d)
            W_2 = matrices(config, std).to_h(dim)
            self.bigrams = SphereBigrams(
                config.bigram_rows, dim, W_2, std=std, bound=rows, start=0.0
            )
        self.blocks, self.encoder = self.stacks(Block)
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=rows, role="head")
        self.s_z = Scale(config.s_z, (V,), d)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token], unit rows; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = s_z ⊙ (E_out h) (eq. 1, 3)."""
        return Head((self.E_out or self.E_in).matrix(), self.s_z())
