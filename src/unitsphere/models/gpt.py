"""GPT and GPT+: the baselines that normalized Transformers are measured against.

GPT is the baseline of the nGPT paper (arXiv 2410.01131, §2 and A.6); GPT+ is that of the anGPT
paper (arXiv 2505.22014, §5): the same with QK norm and half of each head rotated.

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `GPT.embed` |
| attention | x = RMSNorm(h); q, k, v = W_q x, W_k x, W_v x; RoPE on q, k | `Attention` |
| GPT | softmax(q kᵀ/√d_k + M) v | |
| GPT+ | q = Norm(q), k = Norm(k) per head; softmax(g·q kᵀ + M) v, g [H] starts at √d_k | |
| residual | h = h + c·W_o(heads), c = 1 (`branch`) | `Block.forward` |
| across | the same with k, v = W_k m, W_v m of the memory m = RMSNorm(encoder's h), no RoPE | |
| MLP | x = RMSNorm(h); h = h + c·W_oMLP(W_u x ⊙ SiLU(W_nu x)) | `MLP` |
| logits | z = E_out RMSNorm(h) | `GPT.head` |

Matrices N(0, 0.02²), the output matrices W_o and W_oMLP ÷√(2L), with cross-attention ÷√(3L).
Nothing is constrained.

Switches of strong recent baselines (modded-nanogpt, track 3), all off by default:

| switch | formula |
|---|---|
| `embedding_norm` | h = RMSNorm(E_in[token]) |
| `embedding_start` | rows of E_in start with root mean square 1 (`rms`) or length 1 (`unit`) |
| `zero_outputs` | W_o and W_oMLP start at 0 (`branches`), and E_out does (`all`) |
| `activation = "relu2"` | h = h + W_oMLP ReLU(W_u x)² |
| `softcap = c` | z = c·z'/√(c² + z'²), z' = E_out RMSNorm(h) |
| `output_norm` | h = h + RMSNorm(F(x)) for a sublayer's output F(x), x = RMSNorm(h) |
| `gated` | F(x) 2σ(⟨w, x⟩) in place of F(x) (of RMSNorm(F(x))): the gate of `best` |
| `token_shift` | h = e_t + 2σ(√d·⟨w, Norm(e_t)⟩)·s ⊙ e_{t−1}, e_t = E_in[token t]: `TokenShift` |
| `bigram_rows` | h = h + s_2 ⊙ W_2 E_2[row of tokens t−1 and t]: `BigramEmbedding` |
| `value_embeddings` | v = W_v x + s_v ⊙ E_v[token] in the last layer and every second before it |
| `key_offset` | k_t = [k_t's rotated dimensions ‖ k_{t−1}'s others], k after RoPE and norm |

With `output_norm` and `embedding_norm` it is Peri-LN (Kim et al. 2025, arXiv 2502.02732, §3).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
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
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import (
    BigramEmbedding,
    Embedding,
    Linear,
    LogitGain,
    RMSNorm,
    Scale,
    TokenShift,
    logit_gain,
)
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import relu2, swiglu
from unitsphere.ops.attention import merge_heads, split_heads


@dataclass(frozen=True)
class GPTConfig(ModelConfig):
    """GPT's numbers; with `qk_norm` and `rotary_fraction` 0.5 it is GPT+."""

    qk_norm: bool = False
    """GPT+: q and k normalised per head after RoPE, their product scaled by a learned g"""
    g: LogitGain = "head"
    """with `qk_norm`: g learned for each head or for each layer, or fixed"""
    g_init: float | None = None
    """where g starts, or is fixed; none: √d_k"""
    rotary_fraction: float = 1.0
    """share of each head that RoPE rotates; GPT+ rotates the first half"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    init_std: float = 0.02
    """standard deviation of the initial matrices"""
    norm_eps: float = 1e-6
    """added to the mean square in RMSNorm"""
    activation: Literal["swiglu", "relu2"] = "swiglu"
    """of the MLP; relu2: W_oMLP ReLU(W_u x)², without a gate"""
    softcap: float | None = None
    """c: a logit z becomes c·z/√(c² + z²), which is between -c and c; none: it stays z"""
    embedding_norm: bool = False
    """RMSNorm, with a gain, of h = E_in[token]"""
    embedding_start: Literal["normal", "rms", "unit"] = "normal"
    """rows of E_in at the start: as drawn, or made to have root mean square 1, or length 1"""
    zero_outputs: Literal["none", "branches", "all"] = "none"
    """what starts at zero; branches: W_o and W_oMLP; all: an untied E_out too"""
    branch: float = 1.0
    """c: factor of each sublayer's output before it is added to h; 1/√(2L) is Depth-μP's"""
    gated: bool = False
    """each sublayer's output is multiplied by 2σ(⟨w, x⟩), one number per token of its input x"""
    output_norm: bool = False
    """RMSNorm, with a gain, of each sublayer's output before it is added to h"""
    value_embeddings: bool = False
    """every second layer has an embedding E_v, which it adds to the values: v + s_v ⊙ E_v[token]"""
    token_shift: bool = False
    """h = e_t + γ_t s ⊙ e_{t−1} of the embeddings e of a token and of the one before it, s from 0;
    γ_t = 2σ(√d·⟨w, Norm(e_t)⟩)"""
    bigram_rows: int = 0
    """rows of an embedding E_2 of the pair of a token and the one before it, a hash chooses which:
    h + s_2 ⊙ W_2 E_2[row], E_2 from 0; 0: none"""
    bigram_dim: int | None = None
    """width of E_2; none: a quarter of d_model"""
    key_offset: bool = False
    """the dimensions of a key that RoPE does not rotate are those of the token before, so that one
    layer finds what followed the same token earlier; needs `rotary_fraction` between 0 and 1"""

    def __post_init__(self) -> None:
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise UserError(f"model.softcap must be a number above 0: {self.softcap}")


def matrices(config: GPTConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer; nothing is constrained."""
    d, std = config.d_model, config.init_std
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=None),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=None),
    )


class Attention(AttentionMixer):
    """x looks at itself, or across at a memory; with g, q and k are normalised."""

    def __init__(self, config: GPTConfig, W: Matrices, layer: int | None = None) -> None:
        super().__init__(config)
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_o = W.to_h(self.d_q)
        self.g = None
        if config.qk_norm:
            self.g = logit_gain(config.g, config.g_init, self.n_heads, self.d_k)
        if config.value_embeddings:
            self.embed_values(config, layer, std=config.init_std, bound=None)
        if config.key_offset:
            self.offset = offset_start(self.d_k, config.rotary_fraction)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = split_heads(self.W_q(x), self.n_heads)
        k, v = context.keys_values(x, self.keys_values, self.offset)
        if self.g is None:
            heads = context.attend(context.rotate(q), k, v, scale=1 / math.sqrt(self.d_k))
        else:
            heads = context.attend(context.rotate_norm(q, self.g()), k, v, scale=1.0)
        return self.W_o(merge_heads(heads))

    def keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k after RoPE and norm, and v, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(x), self.n_kv_heads) for W in (self.W_k, self.W_v))
        k = context.rotate(k) if self.g is None else context.rotate_norm(k)
        return k, self.with_tokens(v, context)


class MLP(nn.Module):
    """SwiGLU: W_oMLP(W_u x ⊙ SiLU(W_nu x)); with relu2: W_oMLP ReLU(W_u x)²."""

    def __init__(self, config: GPTConfig, W: Matrices) -> None:
        super().__init__()
        d_ff = mlp_size(config.d_ff, config.d_model)
        self.W_u = W.from_h(d_ff)
        self.W_nu = W.from_h(d_ff) if config.activation == "swiglu" else None
        self.W_oMLP = W.to_h(d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        u = self.W_u(x)
        return self.W_oMLP(relu2(u) if self.W_nu is None else swiglu(u, self.W_nu(x)))


class Block(nn.Module):
    """One pre-norm layer: attention, across if there is a memory, MLP, each added to h."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "norm_A",
        "cross": "norm_X",
        "mlp": "norm_M",
    }
    cross: Attention
    norm_X: RMSNorm
    norm_oX: nn.Module
    w_X: Scale | None

    def __init__(self, config: GPTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, eps, self.branch = config.d_model, config.norm_eps, float(config.branch)
        std = output_std(config.init_std, config.n_layers, cross)
        W = matrices(config, std if config.zero_outputs == "none" else 0.0)
        attention = partial(Attention, layer=layer)
        self.norm_A, self.attention = RMSNorm(d, eps), build_mixer(config, layer, W, attention)
        self.norm_M, self.mlp = RMSNorm(d, eps), build_mlp(config, W, MLP)
        gate = partial(variants.gate_vector, config.gated, d)
        self.w_A, self.w_M = gate(), gate()
        output_norm = partial(RMSNorm, d, eps) if config.output_norm else nn.Identity
        self.norm_oA, self.norm_oM = output_norm(), output_norm()
        if cross:
            self.norm_X, self.cross, self.w_X = RMSNorm(d, eps), Attention(config, W), gate()
            self.norm_oX = output_norm()

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        c, gated = self.branch, variants.gated  # h + c·F(x)
        x = self.norm_A(h)
        h = torch.add(h, gated(x, self.norm_oA(self.attention(x, context)), self.w_A), alpha=c)
        if across is not None:
            x = self.norm_X(h)
            h = torch.add(h, gated(x, self.norm_oX(self.cross(x, across)), self.w_X), alpha=c)
        x = self.norm_M(h)
        return torch.add(h, gated(x, self.norm_oM(self.mlp(x)), self.w_M), alpha=c)


class GPT(Transformer):
    """The model of the table above."""

    def __init__(self, config: GPTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d = config.d_model
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        V, std = vocabulary(config.vocab_size), config.init_std
        start = {"normal": None, "rms": math.sqrt(d), "unit": 1.0}[config.embedding_start]
        self.E_in = Embedding(V, d, std=std, bound=None, length=start)
        self.norm_E = RMSNorm(d, config.norm_eps) if config.embedding_norm else nn.Identity()
        self.shift = TokenShift(d) if config.token_shift else None
        if config.bigram_rows:
            dim = bigram_size(config.bigram_dim, d)
            W_2 = Linear(dim, d, std=1 / math.sqrt(dim), bound=None)
            self.bigrams = BigramEmbedding(
                config.bigram_rows, dim, W_2, std=0.0, bound=None, start=1.0
            )
        self.blocks, self.encoder = self.stacks(Block)
        self.norm = RMSNorm(d, config.norm_eps)
        if self.encoder is not None:
            self.norm_memory = RMSNorm(d, config.norm_eps)
        std = 0.0 if config.zero_outputs == "all" else std
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=None, role="head")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token]; RoPE carries the positions."""
        return self.norm_E(self.E_in(tokens))

    def head(self) -> Head:
        """z = E_out x of x = RMSNorm(h)."""
        return Head((self.E_out or self.E_in).matrix(), softcap=self.config.softcap)
