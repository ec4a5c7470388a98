"""DyT: GPT+ with tanh in place of its norms (Zhu et al., "Transformers without normalization").

The anGPT paper compares with it (arXiv 2505.22014, Appendix A, Figure A.1).

| step | formula | method |
|---|---|---|
| norm | DyT(h) = γ ⊙ tanh(α h) (+ β); a scalar α, γ [d] and β [d] for each | `DyT.forward` |
| embed | h = s·E_in[token], a learned scalar s that starts at √d | `DyTGPT.embed` |
| attention | x = DyT(h); q, k, v = W_q x, W_k x, W_v x; RoPE on q, k | `gpt.Attention` |
| | q = Norm(q), k = Norm(k) per head; softmax(g·q kᵀ + M) v, g [H] starts at √d_k | |
| residual | h = h + W_o(heads) | `Block.forward` |
| MLP | x = DyT(h); h = h + W_oMLP(W_u x ⊙ SiLU(W_nu x)) | `gpt.MLP` |
| logits | z = E_out DyT(h) | `DyTGPT.head` |

γ starts at 1, β at 0, α at ½ (the anGPT paper uses 1). β is off by default: the anGPT paper
names "an input scaling scalar and output scaling vector" and uses no bias. QK norm stays.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unitsphere.models.constraint import Declaration
from unitsphere.models.context import Context
from unitsphere.models.cuts import Cut
from unitsphere.models.gpt import MLP, Attention
from unitsphere.models.parts import (
    Embedding,
    Linear,
    LogitGain,
    Scale,
    ScaleConfig,
    head_size,
    output_std,
    rotary_size,
    vocabulary,
)
from unitsphere.models.trunk import Head, Objective, Transformer


@dataclass(frozen=True)
class DyTConfig:
    """DyT's numbers; the rest of the defaults are those of GPT+."""

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
    alpha_init: float = 0.5
    """where every α starts"""
    beta: bool = False
    """add a learned β to each tanh"""
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
    tied: bool = False
    """use the input embedding as output head"""


class DyT(nn.Module):
    """γ ⊙ tanh(α x) (+ β), element by element: what stands in for a norm."""

    def __init__(self, config: DyTConfig) -> None:
        super().__init__()
        self.start = config.alpha_init
        self.alpha = nn.Parameter(torch.empty(()))
        self.gain = nn.Parameter(torch.empty(config.d_model))
        self.bias = nn.Parameter(torch.empty(config.d_model)) if config.beta else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        y = self.gain * torch.tanh(self.alpha * x)
        return y if self.bias is None else y + self.bias

    def reset(self, generator: torch.Generator) -> None:
        """α at its start, γ = 1, β = 0."""
        nn.init.constant_(self.alpha, self.start)
        nn.init.ones_(self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def declare(self) -> dict[str, Declaration]:
        """All are free of weight decay."""
        return {
            "alpha": Declaration("scale"),
            "gain": Declaration("gain"),
            "bias": Declaration("bias"),
        }


class Block(nn.Module):
    """One layer as GPT+'s, with DyT where its norms are."""

    readers: ClassVar[dict[str, str]] = {"attention": "norm_A", "cross": "norm_X", "mlp": "norm_M"}
    cross: Attention
    norm_X: DyT

    def __init__(self, config: DyTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, std = config.d_model, config.init_std
        std_out = output_std(std, config.n_layers, cross)

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

        self.norm_A, self.attention = DyT(config), attention()
        self.norm_M, self.mlp = DyT(config), MLP(d, config.d_ff, std=std, std_out=std_out)
        if cross:
            self.norm_X, self.cross = DyT(config), attention()

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.attention(self.norm_A(h), context)
        if across is not None:
            h = h + self.cross(self.norm_X(h), across)
        return h + self.mlp(self.norm_M(h))


class DyTGPT(Transformer):
    """The model of the table above."""

    cuts: ClassVar[dict[str, Cut]] = {
        "E_in": "vocabulary",
        "E_out": "vocabulary",
    }

    def __init__(self, config: DyTConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d = config.d_model
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        V, std = vocabulary(config.vocab_size), config.init_std
        self.E_in = Embedding(V, d, std=std, bound=None)
        root = math.sqrt(d)
        self.s = Scale(ScaleConfig("scalar", init=root, scale=root), (), d)
        self.blocks, self.encoder = self.stacks(Block)
        self.norm = DyT(config)
        if self.encoder is not None:
            self.norm_memory = DyT(config)
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=None, role="head")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = s·E_in[token]; RoPE carries the positions."""
        return self.E_in(tokens) * self.s()

    def head(self) -> Head:
        """z = E_out x of x = DyT(h)."""
        return Head((self.E_out or self.E_in).matrix())

    def fold(self) -> None:
        """s into an embedding of its own; a tied one is the head too."""
        if self.E_out is not None:
            self.E_in.absorb(self.s())
            self.s.spend()
