"""LN-scaling: GPT+ whose norms shrink with depth (Sun et al., "The curse of depth", 2025).

The anGPT paper compares with it (arXiv 2505.22014, Appendix A, Figure A.1).

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `LNScaling.embed` |
| attention | x = RMSNorm(h)/√ℓ, ℓ = 1 … L; q, k, v = W x; RoPE on q, k | `gpt.Attention` |
| | q = Norm(q), k = Norm(k) per head; softmax(g·q kᵀ + M) v, g [H] starts at √d_k | |
| residual | h = h + W_o(heads) | `Block.forward` |
| MLP | x = RMSNorm(h)/√ℓ; h = h + W_oMLP(W_u x ⊙ SiLU(W_nu x)) | `gpt.MLP` |
| logits | z = E_out RMSNorm(h) | `LNScaling.head` |

1/√ℓ is a constant, not a parameter, and not a buffer that could be lost; the last norms (before
the head, and of an encoder's memory) have none. With QK norm it cancels in q and k and acts on v
and the MLP. The rest is GPT+.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from unitsphere.models.context import Context
from unitsphere.models.cuts import Cut
from unitsphere.models.gpt import MLP, Attention
from unitsphere.models.parts import (
    Embedding,
    Linear,
    LogitGain,
    RMSNorm,
    head_size,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.trunk import Head, Objective, Transformer


@dataclass(frozen=True)
class LNScalingConfig:
    """LN-scaling's numbers; the defaults are those of GPT+."""

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
    tied: bool = False
    """use the input embedding as output head"""


class Block(nn.Module):
    """One pre-norm layer as GPT+'s, its norms divided by √ℓ."""

    readers: ClassVar[dict[str, str]] = {"attention": "norm_A", "cross": "norm_X", "mlp": "norm_M"}
    cross: Attention
    norm_X: RMSNorm

    def __init__(self, config: LNScalingConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, eps, std = config.d_model, config.norm_eps, config.init_std
        std_out = output_std(std, config.n_layers, cross)
        self.depth_scale = 1 / math.sqrt(layer + 1)

        def attention() -> Attention:
            return Attention(
                d,
                config.n_heads,
                config.n_kv_heads,
                layer,
                std=std,
                std_out=std_out,
                g=config.g if config.qk_norm else None,
                g_init=config.g_init,
            )

        self.norm_A, self.attention = RMSNorm(d, eps), attention()
        self.norm_M, self.mlp = RMSNorm(d, eps), MLP(d, config.d_ff, std=std, std_out=std_out)
        if cross:
            self.norm_X, self.cross = RMSNorm(d, eps), attention()

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.attention(self.norm_A(h) * self.depth_scale, context)
        if across is not None:
            h = h + self.cross(self.norm_X(h) * self.depth_scale, across)
        return h + self.mlp(self.norm_M(h) * self.depth_scale)

    def fold(self) -> None:
        """1/√ℓ into the norms' gains."""
        for norm in (self.norm_A, self.norm_M):
            norm.absorb(self.depth_scale)
        if hasattr(self, "cross"):
            self.norm_X.absorb(self.depth_scale)
        self.depth_scale = 1.0


class LNScaling(Transformer):
    """The model of the table above."""

    cuts: ClassVar[dict[str, Cut]] = {
        "E_in": "vocabulary",
        "E_out": "vocabulary",
    }

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
