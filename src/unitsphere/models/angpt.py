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
and W_d too, unlike nGPT. They start at length 1.

Cross-attention, `token_shift` and `bigram_rows` are extensions of this project.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from unitsphere.models.config import (
    ModelConfig,
    bigram_size,
    head_size,
    mlp_size,
    offset_start,
    rotary_size,
    vocabulary,
)
from unitsphere.models.constraint import Bound
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import (
    Embedding,
    Linear,
    LogitGain,
    Scale,
    ScaleConfig,
    TokenShift,
    UnitBigramEmbedding,
    logit_gain,
)
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import ACTIVATIONS, Activation, nu_acf
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.norm import cast
from unitsphere.ops.residual import lerp, nu


@dataclass(frozen=True)
class ANGPTConfig(ModelConfig):
    """anGPT's numbers; the defaults are the paper's (Table F.2), or nGPT's where it gives none."""

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
    token_shift: bool = False
    """h = (e_t + γ_t s ⊙ e_{t−1})·ν(s) of the embeddings e of a token and of the one before it, s
    from 0; γ_t = 2σ(√d·⟨w, Norm(e_t)⟩), ν(s) = (1 + mean s²)^(−1/2) (this project's)"""
    bigram_rows: int = 0
    """rows of an embedding E_2 of the pair of a token and the one before it, a hash chooses which:
    (h + s_2 ⊙ Norm(W_2 E_2[row]))·ν(s_2), s_2 from 0; 0: none (this project's)"""
    bigram_dim: int | None = None
    """width of E_2; none: a quarter of d_model"""
    key_offset: bool = False
    """the dimensions of a key that RoPE does not rotate are those of the token before, so that one
    layer finds what followed the same token earlier; needs `rotary_fraction` between 0 and 1"""


def matrices(config: ANGPTConfig) -> Matrices:
    """Matrices of a sublayer: rows of length 1 or less, also where they write to h (§4.2)."""
    d, std, in_axis = config.d_model, 1 / math.sqrt(config.d_model), Bound(dim=1, kind="ball")
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=in_axis),
        to_h=lambda d_in: Linear(d_in, d, std=std, bound=in_axis),
        unit=True,
    )


class Attention(AttentionMixer):
    """h_A before its norm: h looks at itself, or across at a memory."""

    def __init__(self, config: ANGPTConfig, W: Matrices) -> None:
        super().__init__(config)
        d, self.attention_factor = config.d_model, config.attention_factor
        self.nu_qkv, self.nu_p = math.sqrt(d / self.d_k), math.sqrt(self.d_k / d)
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_p = W.to_h(self.d_q)
        self.g = logit_gain(config.g, config.g_init, self.n_heads, self.d_k)
        if config.key_offset:
            self.offset = offset_start(self.d_k, config.rotary_fraction)

    def forward(self, h: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = context.rotate_norm(split_heads(self.W_q(h, self.nu_qkv), self.n_heads), self.g())
        k, v = context.keys_values(h, self.keys_values, self.offset)
        heads = context.attend(q, k, v, scale=1.0)
        if self.attention_factor:
            heads = heads * context.keys_seen(k).to(heads.dtype).sqrt()
        return self.W_p(merge_heads(heads), self.nu_p)

    def keys_values(self, h: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k and v of h, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(h, self.nu_qkv), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return context.rotate_norm(k), v


class MLP(nn.Module):
    """h_M before its norm."""

    def __init__(self, config: ANGPTConfig, W: Matrices) -> None:
        super().__init__()
        d, d_ff = config.d_model, mlp_size(config.d_ff, config.d_model)
        self.nu_uz, self.nu_d = math.sqrt(d / d_ff), math.sqrt(d_ff / d)
        self.z_gain = math.sqrt(d) if config.z_gain == "sqrt_d" else 1.0
        self.activation = ACTIVATIONS[config.activation]
        z_std = self.nu_uz * self.z_gain / math.sqrt(d)  # unit rows, ‖h‖ = 1
        computed = nu_acf(config.activation, z_std)
        self.nu_acf = computed if config.nu_acf is None else config.nu_acf
        self.W_u, self.W_z, self.W_d = W.from_h(d_ff), W.from_h(d_ff), W.to_h(d_ff)

    def forward(self, h: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        u = self.W_u(h, self.nu_uz * self.nu_acf)  # ν_acf scales the product; here it folds
        z = self.W_z(h, self.nu_uz * self.z_gain)
        return self.W_d(u * self.activation(z), self.nu_d)


class Rate(Scale):
    """|α|, or α itself if signed, with the ν(α) that restores h's length, or 1 in its place."""

    kept: Tensor | None

    def __init__(self, config: ANGPTConfig) -> None:
        super().__init__(config.alpha, (config.d_model,), config.d_model)
        self.restores, self.signed = config.nu_alpha, config.signed_alpha
        self.register_buffer("kept", None, persistent=False)  # ν(α) of a folded model
        self.register_load_state_dict_post_hook(keep_loaded_nu)

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
    def keep_nu(self) -> None:
        """Compute ν(α) once for all tokens: see `plans.fold_`."""
        self.kept = None
        if self.restores:
            self.kept = torch.as_tensor(self.nu())


def keep_loaded_nu(rate: Rate, odd_keys: object) -> None:
    """Compute a folded model's ν(α) again, of the α that was loaded."""
    if rate.kept is not None:
        rate.keep_nu()


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP; h is interpolated with each."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "attention",
        "cross": "cross",
        "mlp": "mlp",
    }
    cross: Attention
    alpha_X: Rate

    def __init__(self, config: ANGPTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        W = matrices(config)
        self.attention, self.alpha_A = build_mixer(config, layer, W, Attention), Rate(config)
        self.mlp, self.alpha_M = build_mlp(config, W, MLP), Rate(config)
        if cross:
            self.cross, self.alpha_X = Attention(config, W), Rate(config)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d], of length 1 in expectation.

        `lerp(h, x, α, ν)` is (h + α ⊙ (Norm(x) − h))·ν: h_A and h_M end with that Norm.
        """
        h_A = self.attention(h, context)
        h = lerp(h, h_A, self.alpha_A(), self.alpha_A.nu())  # (h + α_A ⊙ (h_A − h))·ν(α_A)
        if across is not None:
            h_X = self.cross(h, across)
            h = lerp(h, h_X, self.alpha_X(), self.alpha_X.nu())  # (h + α_X ⊙ (h_X − h))·ν(α_X)
        h_M = self.mlp(h)
        return lerp(h, h_M, self.alpha_M(), self.alpha_M.nu())  # (h + α_M ⊙ (h_M − h))·ν(α_M)


def restored(h: Tensor, s: Tensor | float) -> Tensor:
    """h·ν(s) of a sum whose second vector was multiplied by s, ν(s) = (1 + mean s²)^(−1/2)."""
    return h * cast((1 + torch.as_tensor(s).square().mean()).rsqrt(), h.dtype)


class NuTokenShift(TokenShift):
    """That times ν(s): of length 1 in expectation, for unit vectors that are independent."""

    def forward(self, e: Tensor, before: Tensor) -> Tensor:
        """[batch, time, d] each -> [batch, time, d]."""
        return restored(super().forward(e, before), self.s())


class NuBigrams(UnitBigramEmbedding):
    """That times ν(s): of length 1 in expectation, for unit vectors that are independent."""

    def forward(self, h: Tensor, rows: Tensor, first: Tensor) -> Tensor:
        """As `BigramEmbedding`."""
        return restored(super().forward(h, rows, first), self.s())


class ANGPT(Transformer):
    """The model of the table above."""

    def __init__(self, config: ANGPTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V = config.d_model, vocabulary(config.vocab_size)
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        std, rows = 1 / math.sqrt(d), Bound(dim=1, kind="ball")
        self.E_in = Embedding(V, d, std=std, bound=rows)
        self.shift = NuTokenShift(d) if config.token_shift else None
        if config.bigram_rows:
            dim, W = bigram_size(config.bigram_dim, d), matrices(config)
            self.bigrams = NuBigrams(
                config.bigram_rows, dim, W.to_h(dim), std=std, bound=rows, start=0.0
            )
        self.blocks, self.encoder = self.stacks(Block)
        self.W_h = None if config.tied else Linear(d, V, std=std, bound=rows, role="head")
        self.s_z = Scale(config.s_z, (V,), d)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token]; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = s_z ⊙ (W_h h)."""
        return Head((self.W_h or self.E_in).matrix(), self.s_z())
