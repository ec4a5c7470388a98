"""LN-scaling: GPT+ whose norms shrink with depth (Sun et al., "The curse of depth", 2025).

The anGPT paper compares with it (arXiv 2505.22014, Appendix A, Figure A.1).

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `LNScaling.embed` |
| attention | x = RMSNorm(h)/√ℓ, ℓ = 1 … L; q, k, v = W x; RoPE on q, k | `Attention` |
| | q = Norm(q), k = Norm(k) per head; softmax(g·q kᵀ + M) v, g [H] starts at √d_k | |
| residual | h = h + W_o(heads) | `Block.forward` |
| MLP | x = RMSNorm(h)/√ℓ; h = h + W_oMLP(W_u x ⊙ SiLU(W_nu x)) | `MLP` |
| logits | z = E_out RMSNorm(h) | `LNScaling.head` |

1/√ℓ is a constant, not a parameter, and not a buffer that could be lost; the last norms (before
the head, and of an encoder's memory) have none. With QK norm it cancels in q and k and acts on v
and the MLP. The rest is GPT+.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from unitsphere.models.config import (
    ModelConfig,
    head_size,
    mlp_size,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import Embedding, Linear, LogitGain, RMSNorm, logit_gain
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import swiglu
from unitsphere.ops.attention import merge_heads, split_heads


@dataclass(frozen=True)
class LNScalingConfig(ModelConfig):
    """LN-scaling's numbers; the defaults are those of GPT+."""

    qk_norm: bool = True
    """q and k normalised per head after RoPE, their product scaled by a learned g"""
    g: LogitGain = "head"
    """with `qk_norm`: g learned for each head or for each layer, or fixed"""
    g_init: float | None = None
    """where g starts, or is fixed; none: √d_k"""
    rotary_fraction: float = 0.5
    """share of each head that RoPE rotates, from its front"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    init_std: float = 0.02
    """standard deviation of the initial matrices; W_o and W_oMLP ÷√(2L)"""
    norm_eps: float = 1e-6
    """added to the mean square in RMSNorm"""


def matrices(config: LNScalingConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer; nothing is constrained."""
    d, std = config.d_model, config.init_std
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=None),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=None),
    )


class Attention(AttentionMixer):
    """x looks at itself, or across at a memory; with g, q and k are normalised."""

    def __init__(self, config: LNScalingConfig, W: Matrices) -> None:
        super().__init__(config)
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_o = W.to_h(self.d_q)
        self.g = None
        if config.qk_norm:
            self.g = logit_gain(config.g, config.g_init, self.n_heads, self.d_k)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = split_heads(self.W_q(x), self.n_heads)
        k, v = context.keys_values(x, self.keys_values)
        if self.g is None:
            heads = context.attend(context.rotate(q), k, v, scale=1 / math.sqrt(self.d_k))
        else:
            heads = context.attend(context.rotate_norm(q, self.g()), k, v, scale=1.0)
        return self.W_o(merge_heads(heads))

    def keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k after RoPE and norm, and v, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(x), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return (context.rotate(k) if self.g is None else context.rotate_norm(k)), v


class MLP(nn.Module):
    """SwiGLU: W_oMLP(W_u x ⊙ SiLU(W_nu x))."""

    def __init__(self, config: LNScalingConfig, W: Matrices) -> None:
        super().__init__()
        d_ff = mlp_size(config.d_ff, config.d_model)
        self.W_u, self.W_nu, self.W_oMLP = W.from_h(d_ff), W.from_h(d_ff), W.to_h(d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return self.W_oMLP(swiglu(self.W_u(x), self.W_nu(x)))


class Block(nn.Module):
    """One pre-norm layer as GPT+'s, its norms divided by √ℓ."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "norm_A",
        "cross": "norm_X",
        "mlp": "norm_M",
    }
    cross: Attention
    norm_X: RMSNorm

    def __init__(self, config: LNScalingConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, eps = config.d_model, config.norm_eps
        self.depth_scale = 1 / math.sqrt(layer + 1)
        W = matrices(config, output_std(config.init_std, config.n_layers, cross))
        self.norm_A, self.attention = RMSNorm(d, eps), build_mixer(config, layer, W, Attention)
        self.norm_M, self.mlp = RMSNorm(d, eps), build_mlp(config, W, MLP)
        if cross:
            self.norm_X, self.cross = RMSNorm(d, eps), Attention(config, W)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.attention(self.norm_A(h) * self.depth_scale, context)
        if across is not None:
            h = h + self.cross(self.norm_X(h) * self.depth_scale, across)
        return h + self.mlp(self.norm_M(h) * self.depth_scale)


class LNScaling(Transformer):
    """The model of the table above."""

    def __init__(self, config: LNScalingConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d = config.d_model
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        V, std = vocabulary(config.vocab_size), config.init_std
        self.E_in = Embedding(V, d, std=std, bound=None)
        self.blocks, self.encoder = self.stacks(Block)
        self.norm = RMSNorm(d, config.norm_eps)
        if self.encoder is not None:
            self.norm_memory = RMSNorm(d, config.norm_eps)
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=None, role="head")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token]; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = E_out x of x = RMSNorm(h)."""
        return Head((self.E_out or self.E_in).matrix())
