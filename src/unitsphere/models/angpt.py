"""anGPT: nGPT's gains from constants instead of norms (arXiv 2505.22014, Table 1).

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `ANGPT.embed` |
| attention | q, k, v = W h·ν_qkv; RoPE; q = Norm(q), k = Norm(k) per head | `Attention` |
| | softmax(q kᵀ·g + M) v, g [H] starts at √d_k; h_A = Norm(W_p(heads)·ν_p) | |
| residual | h = (h + α_A ⊙ (h_A − h))·ν(α_A) | `Block.forward` |
| across | k, v of the encoder's h, no RoPE; h = (h + α_X ⊙ (h_X − h))·ν(α_X) | |
| MLP | u, z = W_u h·ν_uz, W_z h·ν_uz·√d; h_M = Norm(W_d(u ⊙ SiLU(z)·ν_acf)·ν_d) | `MLP` |
| residual | h = (h + α_M ⊙ (h_M − h))·ν(α_M) | `Block.forward` |
| logits | z = s_z ⊙ (W_h h) | `ANGPT.head` |

α is used as |α|: §4.2's rule h ← h + α(x − h) asks for α > 0 (`signed_alpha` takes α as it is).
The paper gives neither α's nor s_z's init: 0.05 and 1 are nGPT's (its §2.6).
ν_qkv = √(d/d_k), ν_p = √(d_k/d), ν_uz = √(d/d_f), ν_d = √(d_f/d), ν(α) = (1 − 2α + 2α²)^(−1/2),
ν_acf = 1/√E f(z)² of the activation f = SiLU: 3.74 in the paper, 3.72035 by quadrature at std ½.
The factor √d in z is what ν_acf presupposes: with unit rows and ‖h‖ = 1 it gives z the standard
deviation ½ (`z_gain`; "1" is the literal Table 1). Appendix D's `attention_factor` multiplies
query i's output by √r_i, r_i the number of keys that it sees.

ν_qkv, ν_p, ν_d, ν_acf, √r and ν_uz on u scale a vector that a Norm then divides by its length: they
cancel, in the logits and in every gradient, and keep what lies between at unit variance (which
matters for the range of fp16 and bf16). Of these factors only ν_uz on z changes the function.

Constraint (§4.2): ‖w‖ ≤ 1 along the in axis (dim 1) of every matrix, embeddings per row; W_p
and W_d too, unlike nGPT. They start at length 1. Cross-attention is an extension of this project.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from unitsphere.models.constraint import Bound
from unitsphere.models.context import Context
from unitsphere.models.cuts import Cut
from unitsphere.models.parts import (
    Embedding,
    Linear,
    LogitGain,
    Scale,
    ScaleConfig,
    head_size,
    kv_heads,
    logit_gain,
    mlp_size,
    rotary_size,
    vocabulary,
)
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import ACTIVATIONS, Activation, nu_acf
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.residual import LONGEST, lerp, nu


@dataclass(frozen=True)
class ANGPTConfig:
    """anGPT's numbers; the defaults are the paper's (Table F.2), or nGPT's where it gives none."""

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
    alpha: ScaleConfig = ScaleConfig(init=0.05, scale=0.01)
    """interpolation rates α_A and α_M (and α_X across), [d] per layer; init: nGPT's (its §2.6)"""
    signed_alpha: bool = False
    """use α as it is instead of |α|: §4.2 asks for α > 0"""
    s_z: ScaleConfig = ScaleConfig(init=1.0, scale=0.01)
    """scale of the logits, [V]; init: nGPT's (its §2.6)"""
    z_gain: Literal["sqrt_d", "1"] = "sqrt_d"
    """gain of the gate z: √d, so that its standard deviation is ½, or none"""
    nu_alpha: bool = True
    """restore the length of h by ν(α) after each step"""
    nu_acf: float | None = None
    """ν_acf: the paper has 3.74; none: by quadrature, for `activation` and z's std at the start"""
    activation: Activation = "silu"
    """f of the MLP's gate"""
    attention_factor: bool = False
    """Appendix D: multiply each row of the attention matrix by √r, r the keys that it sees"""
    g: LogitGain = "head"
    """g learned for each head or for each layer, or fixed"""
    g_init: float | None = None
    """where g starts, or is fixed; none: √d_k"""
    rotary_fraction: float = 0.5
    """share of each head that RoPE rotates, from its front"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    tied: bool = False
    """use the input embedding as output head"""


def h_bound(config: ANGPTConfig) -> float | None:
    """Beyond what no element of h lies: how long h becomes, unless ν(α) is left out."""
    return LONGEST if config.nu_alpha else None


class Attention(nn.Module):
    """h_A before its norm: h looks at itself, or across at a memory."""

    cuts: ClassVar[dict[str, Cut]] = {
        "W_q": "columns",
        "W_k": "columns",
        "W_v": "columns",
        "W_p": "rows",
        "g": "heads",
    }

    def __init__(self, config: ANGPTConfig, layer: int) -> None:
        super().__init__()
        d, self.n_heads, self.layer = config.d_model, config.n_heads, layer
        self.n_kv_heads = kv_heads(config.n_heads, config.n_kv_heads)
        self.d_k, self.attention_factor = head_size(d, config.n_heads), config.attention_factor
        self.nu_qkv, self.nu_p = math.sqrt(d / self.d_k), math.sqrt(self.d_k / d)
        std, in_axis = 1 / math.sqrt(d), Bound(dim=1, kind="ball")

        def of_h(d_out: int) -> Linear:
            return Linear(d, d_out, std=std, bound=in_axis, input_bound=h_bound(config))

        d_kv = self.n_kv_heads * self.d_k
        self.W_q, self.W_k, self.W_v = of_h(d), of_h(d_kv), of_h(d_kv)
        self.W_p = Linear(d, d, std=std, bound=in_axis)
        self.g = logit_gain(config.g, config.g_init, config.n_heads, self.d_k)

    def forward(self, h: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = context.rotate_norm(split_heads(self.W_q(h, self.nu_qkv), self.n_heads), self.g())
        k, v = context.keys_values(self.layer, h, self.keys_values)
        heads = context.attend(q, k, v, scale=1.0)
        if self.attention_factor:
            heads = heads * context.keys_seen(k).to(heads.dtype).sqrt()
        return self.W_p(merge_heads(heads), self.nu_p)

    def keys_values(self, h: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k and v of h, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(h, self.nu_qkv), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return context.rotate_norm(k), v

    def fold(self) -> None:
        """ν_qkv and ν_p into the matrices."""
        for W in (self.W_q, self.W_k, self.W_v):
            W.absorb(self.nu_qkv)
        self.W_p.absorb(self.nu_p)
        self.nu_qkv = self.nu_p = 1.0


class MLP(nn.Module):
    """h_M before its norm."""

    cuts: ClassVar[dict[str, Cut]] = {
        "W_u": "columns",
        "W_z": "columns",
        "W_d": "rows",
    }

    def __init__(self, config: ANGPTConfig) -> None:
        super().__init__()
        d = config.d_model
        d_ff = mlp_size(config.d_ff, d)
        self.nu_uz, self.nu_d = math.sqrt(d / d_ff), math.sqrt(d_ff / d)
        self.z_gain = math.sqrt(d) if config.z_gain == "sqrt_d" else 1.0
        self.activation = ACTIVATIONS[config.activation]
        z_std = self.nu_uz * self.z_gain / math.sqrt(d)  # unit rows, ‖h‖ = 1
        computed = nu_acf(config.activation, z_std)
        self.nu_acf = computed if config.nu_acf is None else config.nu_acf
        std, in_axis = 1 / math.sqrt(d), Bound(dim=1, kind="ball")
        self.W_u, self.W_z = (
            Linear(d, d_ff, std=std, bound=in_axis, input_bound=h_bound(config)) for _ in range(2)
        )
        self.W_d = Linear(d_ff, d, std=std, bound=in_axis)

    def forward(self, h: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        u = self.W_u(h, self.nu_uz * self.nu_acf)  # ν_acf scales the product; here it folds
        z = self.W_z(h, self.nu_uz * self.z_gain)
        return self.W_d(u * self.activation(z), self.nu_d)

    def fold(self) -> None:
        """The ν's and z's gain into the matrices."""
        self.W_u.absorb(self.nu_uz * self.nu_acf)
        self.W_z.absorb(self.nu_uz * self.z_gain)
        self.W_d.absorb(self.nu_d)
        self.nu_uz = self.nu_acf = self.z_gain = self.nu_d = 1.0


class Rate(Scale):
    """|α|, or α itself if signed, with the ν(α) that restores h's length, or 1 in its place."""

    kept: Tensor | None

    def __init__(self, config: ANGPTConfig) -> None:
        super().__init__(config.alpha, (config.d_model,), config.d_model)
        self.restores, self.signed = config.nu_alpha, config.signed_alpha
        self.register_buffer("kept", None, persistent=False)

    def forward(self) -> Tensor | float:
        """[d], a scalar tensor, or the constant."""
        alpha = super().forward()
        return alpha if self.signed else abs(alpha)

    def nu(self) -> Tensor | float:
        """ν(α): [d], a scalar tensor, or a constant."""
        if not self.restores:
            return 1.0
        return nu(self()) if self.kept is None else self.kept

    @torch.no_grad()
    def fold(self) -> None:
        """|α| in place of a learned α, and its ν(α), once for every token."""
        if self.stored is None:
            return
        self.stored.copy_(self())
        self.factor, self.signed, self.kept = 1.0, True, None
        if self.restores:
            self.kept = torch.as_tensor(self.nu())


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP; h is interpolated with each."""

    readers: ClassVar[dict[str, str]] = {"attention": "attention", "cross": "cross", "mlp": "mlp"}
    cross: Attention
    alpha_X: Rate

    def __init__(self, config: ANGPTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        self.attention, self.alpha_A = Attention(config, layer), Rate(config)
        self.mlp, self.alpha_M = MLP(config), Rate(config)
        if cross:
            self.cross, self.alpha_X = Attention(config, layer), Rate(config)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d], of length 1 in expectation."""
        h = lerp(h, self.attention(h, context), self.alpha_A(), self.alpha_A.nu())
        if across is not None:
            h = lerp(h, self.cross(h, across), self.alpha_X(), self.alpha_X.nu())
        return lerp(h, self.mlp(h), self.alpha_M(), self.alpha_M.nu())


class ANGPT(Transformer):
    """The model of the table above."""

    cuts: ClassVar[dict[str, Cut]] = {
        "E_in": "vocabulary",
        "W_h": "vocabulary",
        "s_z": "vocabulary",
    }

    def __init__(self, config: ANGPTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V = config.d_model, vocabulary(config.vocab_size)
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        std, rows = 1 / math.sqrt(d), Bound(dim=1, kind="ball")
        self.E_in = Embedding(V, d, std=std, bound=rows)
        self.blocks, self.encoder = self.stacks(Block)
        self.W_h = None if config.tied else Linear(d, V, std=std, bound=rows, role="head")
        self.s_z = Scale(config.s_z, (V,), d)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token]; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = s_z ⊙ (W_h h)."""
        return Head((self.W_h or self.E_in).matrix(), self.s_z())

    def fold(self) -> None:
        """s_z into an output head of its own; a tied one is the embedding too."""
        if self.W_h is not None:
            self.W_h.absorb(self.s_z())
            self.s_z.spend()
