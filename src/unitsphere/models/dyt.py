"""DyT: GPT+ with tanh in place of its norms (Zhu et al., "Transformers without normalization").

The anGPT paper compares with it (arXiv 2505.22014, Appendix A, Figure A.1).

| step | formula | method |
|---|---|---|
| norm | DyT(h) = γ ⊙ tanh(α h) (+ β); a scalar α, γ [d] and β [d] for each | `DyT.forward` |
| embed | h = s·E_in[token], a learned scalar s that starts at √d | `DyTGPT.embed` |
| attention | x = DyT(h); q, k, v = W_q x, W_k x, W_v x; RoPE on q, k | `Attention` |
| | q = Norm(q), k = Norm(k) per head; softmax(g·q kᵀ + M) v, g [H] starts at √d_k | |
| residual | h = h + W_o(heads) | `Block.forward` |
| MLP | x = DyT(h); h = h + W_oMLP(W_u x ⊙ SiLU(W_nu x)) | `MLP` |
| logits | z = E_out DyT(h) | `DyTGPT.head` |

γ starts at 1, β at 0, α at ½ (the anGPT paper uses 1). β is off by default: the anGPT paper
names "an input scaling scalar and output scaling vector" and uses no bias. QK norm stays.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

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
from unitsphere.models.parts import Embedding, Linear, LogitGain, Scale, ScaleConfig, logit_gain
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import swiglu
from unitsphere.ops.attention import merge_heads, split_heads


@dataclass(frozen=True)
class DyTConfig(ModelConfig):
    """DyT's numbers; the rest of the defaults are those of GPT+."""

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


def matrices(config: DyTConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer; nothing is constrained."""
    d, std = config.d_model, config.init_std
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=None),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=None),
    )


class Attention(AttentionMixer):
    """x looks at itself, or across at a memory; with g, q and k are normalised."""

    def __init__(self, config: DyTConfig, W: Matrices) -> None:
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

    def __init__(self, config: DyTConfig, W: Matrices) -> None:
        super().__init__()
        d_ff = mlp_size(config.d_ff, config.d_model)
        self.W_u, self.W_nu, self.W_oMLP = W.from_h(d_ff), W.from_h(d_ff), W.to_h(d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return self.W_oMLP(swiglu(self.W_u(x), self.W_nu(x)))


class Block(nn.Module):
    """One layer as GPT+'s, with DyT where its norms are."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "norm_A",
        "cross": "norm_X",
        "mlp": "norm_M",
    }
    cross: Attention
    norm_X: DyT

    def __init__(self, config: DyTConfig, layer: int, cross: bool) -> None:
        super().__init__()
        W = matrices(config, output_std(config.init_std, config.n_layers, cross))
        self.norm_A, self.attention = DyT(config), build_mixer(config, layer, W, Attention)
        self.norm_M, self.mlp = DyT(config), build_mlp(config, W, MLP)
        if cross:
            self.norm_X, self.cross = DyT(config), Attention(config, W)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.attention(self.norm_A(h), context)
        if across is not None:
            h = h + self.cross(self.norm_X(h), across)
        return h + self.mlp(self.norm_M(h))


class DyTGPT(Transformer):
    """The model of the table above."""

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
