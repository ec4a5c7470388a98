"""NormFormer, and the Pre-LN GPT that it adds to (arXiv 2110.09456, §2).

| step | formula | switch |
|---|---|---|
| embed | h = √d·E[token] + position, E ~ N(0, 1/d) | `positions` |
| attention | q, k, v = LN_q(W_q x + b_q), … of x = LN_1(h), before the heads | `qkv_ln`: LN_q,k,v |
| | a = W_o Concat(γ_i·head_i) + b_o, heads of q, k, v, /√d_k | `head_scale`: γ [H] |
| residual | h' = h + LN_a(a) | `post_attn_ln`: LN_a |
| MLP | m = W_2 LN_f(σ(W_1 LN_2(h') + b_1)) + b_2 | `ffn_ln`: LN_f |
| GeGLU | GELU(W_1 x + b_1) ⊙ (W_3 x + b_3) in place of σ(W_1 x + b_1) | `activation` |
| residual | h'' = λ ⊙ h' + m | `res_scale`: λ [d] |
| logits | z = E LN(h) | |

With the five switches off this is the paper's Pre-LN baseline. `norm = "post"` is the Post-LN
one: h' = LN_1(h + a of h), h'' = LN_2(λ ⊙ h' + m of h'), no LN before the head.
Across (an extension of this project: the paper has no cross-attention): h' = h' + LN_aX(a of
LN_X(h') with keys and values of LN(encoder's h)), a with its own γ, LN_q, LN_k, LN_v; Post-LN:
h' = LN_X(h' + LN_aX(a)) with those of the encoder's h, which ends in a LN.

γ acts on the heads before W_o; LN_q, LN_k, LN_v ("+ 3 More LN", §5) on the full width.
γ and λ start at 1; LN has gain and bias, eps 1e-5; every Linear has a bias; E is tied.
The paper does not give the matrices' start: N(0, 0.02²), outputs ÷√(2L), as in GPT. Training drops
shares of h's start and of each sublayer's output (`dropout`), and of attention's weights
(`attention_dropout`); evaluation and decoding drop nothing.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.models.config import (
    ModelConfig,
    head_size,
    mlp_size,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.constraint import Declaration
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import Embedding, LayerNorm, Linear
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import ACTIVATIONS
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.rope import sinusoid


@dataclass(frozen=True)
class NormFormerConfig(ModelConfig):
    """NormFormer's numbers; without the four additions it is the Pre-LN baseline."""

    post_attn_ln: bool = True
    """LN_a: layer norm of the attention's output"""
    ffn_ln: bool = True
    """LN_f: layer norm between the MLP's two matrices"""
    head_scale: bool = True
    """γ: a learned scale for each attention head"""
    res_scale: bool = False
    """λ: a learned scale of the residual around the MLP (ResScale)"""
    qkv_ln: bool = False
    """LN_q, LN_k, LN_v: layer norms of the queries, keys and values (Table 4: + 3 More LN)"""
    norm: Literal["pre", "post"] = "pre"
    """layer norm before each sublayer, or after each residual sum (the Post-LN baseline)"""
    activation: Literal["gelu", "relu2", "geglu"] = "gelu"
    """σ of the MLP; relu2: ReLU², in the 2.7B runs; geglu: the gated unit that §5 tries instead of
    LN_f, with a third matrix"""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """added sinusoids, added learned vectors P, or RoPE on q and k"""
    max_positions: int = 2048
    """rows of P: the longest sequence with learned positions"""
    dropout: float = 0.0
    """share of the embedding's and each sublayer's outputs that training drops (Table 5: 0.1)"""
    attention_dropout: float = 0.0
    """share of the attention weights that training drops (RoBERTa and the authors' script: 0.1)"""
    init_std: float = 0.02
    """standard deviation of the initial matrices"""
    norm_eps: float = 1e-5
    """added to the variance in LN"""
    tied: bool = True
    """use the input embedding as output head"""

    def __post_init__(self) -> None:
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"model.{name} must be at least 0 and below 1: {getattr(self, name)}"
                )


class Ones(nn.Module):
    """A learned vector that starts at 1: γ and λ."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        """gain ⊙ x."""
        return self.gain * x

    def reset(self, generator: torch.Generator) -> None:
        """All ones."""
        nn.init.ones_(self.gain)

    def declare(self) -> dict[str, Declaration]:
        """The gain is free of weight decay."""
        return {"gain": Declaration("gain")}


def matrices(config: NormFormerConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer, each with a bias; nothing is constrained."""
    d, std = config.d_model, config.init_std
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=None, bias=True),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=None, bias=True),
    )


class Attention(AttentionMixer):
    """HeadScaleMHA: x looks at itself, or across at a memory."""

    def __init__(self, config: NormFormerConfig, W: Matrices) -> None:
        super().__init__(config)
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_o = W.to_h(self.d_q)
        self.gamma = Ones(self.n_heads, 1, 1) if config.head_scale else nn.Identity()
        self.LN_q, self.LN_k, self.LN_v = (
            LayerNorm(width, config.norm_eps) if config.qkv_ln else nn.Identity()
            for width in (self.d_q, self.d_kv, self.d_kv)
        )
        self.rotary, self.dropout = config.positions == "rotary", config.attention_dropout

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = self.placed(split_heads(self.LN_q(self.W_q(x)), self.n_heads), context)
        k, v = context.keys_values(x, self.keys_values)
        dropout = self.dropout if self.training else 0.0
        heads = context.attend(q, k, v, scale=1 / math.sqrt(self.d_k), dropout=dropout)
        return self.W_o(merge_heads(self.gamma(heads)))

    def keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k and v of x, [batch, H_kv, time, d_k] each."""
        k, v = self.LN_k(self.W_k(x)), self.LN_v(self.W_v(x))
        k, v = (split_heads(heads, self.n_kv_heads) for heads in (k, v))
        return self.placed(k, context), v

    def placed(self, x: Tensor, context: Context) -> Tensor:
        """Heads x, with RoPE if the positions are rotary."""
        return context.rotate(x) if self.rotary else x


class MLP(nn.Module):
    """W_2 LN_f(σ(W_1 x + b_1)) + b_2; with GeGLU W_3 makes the gate."""

    def __init__(self, config: NormFormerConfig, W: Matrices) -> None:
        super().__init__()
        d_ff = mlp_size(config.d_ff, config.d_model)
        gated = config.activation == "geglu"
        self.activation = ACTIVATIONS["gelu" if gated else config.activation]
        self.W_1 = W.from_h(d_ff)
        self.W_3 = W.from_h(d_ff) if gated else None
        self.W_2 = W.to_h(d_ff)
        self.LN_f = LayerNorm(d_ff, config.norm_eps) if config.ffn_ln else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return self.W_2(self.LN_f(self.units(x)))

    def units(self, x: Tensor) -> Tensor:
        """The hidden units before LN_f, [..., d_ff]."""
        units = self.activation(self.W_1(x))
        return units if self.W_3 is None else units * self.W_3(x)


class Block(nn.Module):
    """One layer with the paper's additions: attention, across if there is a memory, MLP."""

    cross: Attention
    LN_X: LayerNorm
    LN_aX: nn.Module

    def __init__(self, config: NormFormerConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, eps = config.d_model, config.norm_eps
        W = matrices(config, output_std(config.init_std, config.n_layers, cross))
        self.post, self.dropout = config.norm == "post", nn.Dropout(config.dropout)
        self.sublayer_inputs = (
            {"attention": "attention", "cross": "cross", "mlp": "mlp"}
            if self.post
            else {"attention": "LN_1", "cross": "LN_X", "mlp": "LN_2"}
        )
        self.LN_1, self.attention = LayerNorm(d, eps), build_mixer(config, layer, W, Attention)
        self.LN_a = LayerNorm(d, eps) if config.post_attn_ln else nn.Identity()
        self.LN_2, self.mlp = LayerNorm(d, eps), build_mlp(config, W, MLP)
        self.lambda_ = Ones(d) if config.res_scale else nn.Identity()
        if cross:
            self.LN_X, self.cross = LayerNorm(d, eps), Attention(config, W)
            self.LN_aX = LayerNorm(d, eps) if config.post_attn_ln else nn.Identity()

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        return (self.post_ln if self.post else self.pre_ln)(h, context, across)

    def pre_ln(self, h: Tensor, context: Context, across: Context | None) -> Tensor:
        """Each sublayer sees LN(h)."""
        h = h + self.dropout(self.LN_a(self.attention(self.LN_1(h), context)))
        if across is not None:
            h = h + self.dropout(self.LN_aX(self.cross(self.LN_X(h), across)))
        return self.lambda_(h) + self.dropout(self.mlp(self.LN_2(h)))

    def post_ln(self, h: Tensor, context: Context, across: Context | None) -> Tensor:
        """LN of each sum."""
        h = self.LN_1(h + self.dropout(self.LN_a(self.attention(h, context))))
        if across is not None:
            h = self.LN_X(h + self.dropout(self.LN_aX(self.cross(h, across))))
        return self.LN_2(self.lambda_(h) + self.dropout(self.mlp(h)))


class NormFormer(Transformer):
    """The model of the table above."""

    def __init__(self, config: NormFormerConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V = config.d_model, vocabulary(config.vocab_size)
        self.d_k = head_size(d, config.n_heads)
        self.root_d = math.sqrt(d)
        self.positions, self.attention_dropout = config.positions, config.attention_dropout
        self.d_rot = rotary_size(self.d_k, 1.0 if config.positions == "rotary" else 0.0)
        if config.positions == "learned":
            self.max_length = config.max_positions
            self.P = Embedding(config.max_positions, d, std=config.init_std, bound=None)
        self.E = Embedding(V, d, std=1 / math.sqrt(d), bound=None)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks, self.encoder = self.stacks(Block)
        if config.norm == "pre":
            self.norm = LayerNorm(d, config.norm_eps)
            if self.encoder is not None:
                self.norm_memory = LayerNorm(d, config.norm_eps)
        std = config.init_std
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=None, role="head")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = √d·E[token] + position; RoPE adds nothing here."""
        h = self.E(tokens) * self.root_d
        if self.positions == "sinusoidal":
            h = h + sinusoid(positions, h.shape[-1], h.dtype)
        elif self.positions == "learned":
            h = h + self.P(positions)
        return self.dropout(h)

    def head(self) -> Head:
        """z = E x of x = LN(h)."""
        return Head((self.E_out or self.E).matrix())
