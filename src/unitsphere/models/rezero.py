"""ReZero: no norms, and layers that start switched off (Bachlechner et al. 2020).

The nGPT paper compares with it (arXiv 2410.01131, A.2, eq. 24); NormFormer names it (§6).

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `ReZero.embed` |
| attention | q, k, v = W_q h, W_k h, W_v h; RoPE; softmax(q kᵀ/√d_k + M) v | `Attention` |
| residual | h = h + a·W_o(heads), a scalar a for each layer, 0 at the start | `Block.forward` |
| MLP | h = h + a·W_oMLP(W_u h ⊙ SiLU(W_nu h)), the same a | `MLP` |
| logits | z = E_out h | `ReZero.head` |

Attention and MLP are GPT's, without QK norm. With no norm before it, a sublayer sees h as it is:
the embeddings start at N(0, 1), where RMSNorm would have put them, unless `tied` to the head. a = 0
already makes each layer the identity, so the output matrices start like the others. Cross-attention
is one more sublayer with the same a; its memory is the encoder's last h.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from unitsphere.models.config import (
    ModelConfig,
    head_size,
    mlp_size,
    rotary_size,
    vocabulary,
)
from unitsphere.models.context import Context
from unitsphere.models.experts import build_mlp
from unitsphere.models.mixers import Matrices, build_mixer
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import Embedding, Linear, Scale, ScaleConfig
from unitsphere.models.trunk import Head, Objective, Transformer
from unitsphere.ops.activations import swiglu
from unitsphere.ops.attention import merge_heads, split_heads


@dataclass(frozen=True)
class ReZeroConfig(ModelConfig):
    """ReZero's numbers."""

    a_init: float = 0.0
    """where the residual weight a of each layer starts"""
    rotary_fraction: float = 1.0
    """share of each head that RoPE rotates, from its front"""
    rope_base: float = 10000.0
    """base of RoPE's frequencies"""
    init_std: float = 0.02
    """standard deviation of the initial matrices"""
    embed_std: float = 1.0
    """standard deviation of the initial embeddings; `init_std` if tied"""


def matrices(config: ReZeroConfig, std_out: float) -> Matrices:
    """Matrices of a sublayer; nothing is constrained."""
    d, std = config.d_model, config.init_std
    return Matrices(
        from_h=lambda d_out: Linear(d, d_out, std=std, bound=None),
        to_h=lambda d_in: Linear(d_in, d, std=std_out, bound=None),
    )


class Attention(AttentionMixer):
    """h looks at itself, or across at a memory."""

    def __init__(self, config: ReZeroConfig, W: Matrices) -> None:
        super().__init__(config)
        self.W_q, self.W_k, self.W_v = W.from_h(self.d_q), W.from_h(self.d_kv), W.from_h(self.d_kv)
        self.W_o = W.to_h(self.d_q)

    def forward(self, h: Tensor, context: Context) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q = context.rotate(split_heads(self.W_q(h), self.n_heads))
        k, v = context.keys_values(h, self.keys_values)
        return self.W_o(merge_heads(context.attend(q, k, v, scale=1 / math.sqrt(self.d_k))))

    def keys_values(self, h: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """k after RoPE, and v, [batch, H_kv, time, d_k] each."""
        k, v = (split_heads(W(h), self.n_kv_heads) for W in (self.W_k, self.W_v))
        return context.rotate(k), v


class MLP(nn.Module):
    """SwiGLU: W_oMLP(W_u x ⊙ SiLU(W_nu x))."""

    def __init__(self, config: ReZeroConfig, W: Matrices) -> None:
        super().__init__()
        d_ff = mlp_size(config.d_ff, config.d_model)
        self.W_u, self.W_nu, self.W_oMLP = W.from_h(d_ff), W.from_h(d_ff), W.to_h(d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return self.W_oMLP(swiglu(self.W_u(x), self.W_nu(x)))


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP, each added to h with the weight a."""

    sublayer_inputs: ClassVar[dict[str, str]] = {
        "attention": "attention",
        "cross": "cross",
        "mlp": "mlp",
    }
    cross: Attention

    def __init__(self, config: ReZeroConfig, layer: int, cross: bool) -> None:
        super().__init__()
        W = matrices(config, config.init_std)
        self.attention = build_mixer(config, layer, W, Attention)
        self.mlp = build_mlp(config, W, MLP)
        if cross:
            self.cross = Attention(config, W)
        self.a = Scale(ScaleConfig("scalar", config.a_init, config.a_init), (), config.d_model)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.a() * self.attention(h, context)
        if across is not None:
            h = h + self.a() * self.cross(h, across)
        return h + self.a() * self.mlp(h)


class ReZero(Transformer):
    """The model of the table above."""

    def __init__(self, config: ReZeroConfig, objective: Objective) -> None:
        super().__init__(config, objective)
        d, V, std = config.d_model, vocabulary(config.vocab_size), config.init_std
        self.d_k = head_size(d, config.n_heads)
        self.d_rot = rotary_size(self.d_k, config.rotary_fraction)
        self.rope_base = config.rope_base
        self.E_in = Embedding(V, d, std=std if config.tied else config.embed_std, bound=None)
        self.blocks, self.encoder = self.stacks(Block)
        self.E_out = None if config.tied else Linear(d, V, std=std, bound=None, role="head")

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """h = E_in[token]; RoPE carries the positions."""
        return self.E_in(tokens)

    def head(self) -> Head:
        """z = E_out h."""
        return Head((self.E_out or self.E_in).matrix())
