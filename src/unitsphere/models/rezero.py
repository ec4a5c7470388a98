"""ReZero: no norms, and layers that start switched off (Bachlechner et al. 2020).

The nGPT paper compares with it (arXiv 2410.01131, A.2, eq. 24); NormFormer names it (§6).

| step | formula | method |
|---|---|---|
| embed | h = E_in[token] | `ReZero.embed` |
| attention | q, k, v = W_q h, W_k h, W_v h; RoPE; softmax(q kᵀ/√d_k + M) v | `gpt.Attention` |
| residual | h = h + a·W_o(heads), a scalar a for each layer, 0 at the start | `Block.forward` |
| MLP | h = h + a·W_oMLP(W_u h ⊙ SiLU(W_nu h)), the same a | `gpt.MLP` |
| logits | z = E_out h | `ReZero.head` |

Attention and MLP are GPT's. With no norm before it, a sublayer sees h as it is: the embeddings
start at N(0, 1), where RMSNorm would have put them, unless `tied` to the head. a = 0 already makes
each layer the identity, so the output matrices start like the others. Cross-attention is one more
sublayer with the same a; its memory is the encoder's last h.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from unitsphere.models.context import Context
from unitsphere.models.cuts import Cut
from unitsphere.models.gpt import MLP, Attention
from unitsphere.models.parts import (
    Embedding,
    Linear,
    Scale,
    ScaleConfig,
    head_size,
    rotary_size,
    vocabulary,
)
from unitsphere.models.trunk import Head, Objective, Transformer


@dataclass(frozen=True)
class ReZeroConfig:
    """ReZero's numbers."""

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
    tied: bool = False
    """use the input embedding as output head"""


class Block(nn.Module):
    """One layer: attention, across if there is a memory, MLP, each added to h with the weight a."""

    readers: ClassVar[dict[str, str]] = {"attention": "attention", "cross": "cross", "mlp": "mlp"}
    cross: Attention

    def __init__(self, config: ReZeroConfig, layer: int, cross: bool) -> None:
        super().__init__()
        d, H, H_kv, std = config.d_model, config.n_heads, config.n_kv_heads, config.init_std
        self.attention = Attention(d, H, H_kv, layer, std=std, std_out=std)
        self.mlp = MLP(d, config.d_ff, std=std, std_out=std)
        if cross:
            self.cross = Attention(d, H, H_kv, layer, std=std, std_out=std)
        self.a = Scale(ScaleConfig("scalar", config.a_init, config.a_init), (), d)

    def forward(self, h: Tensor, context: Context, across: Context | None = None) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        h = h + self.a() * self.attention(h, context)
        if across is not None:
            h = h + self.a() * self.cross(h, across)
        return h + self.a() * self.mlp(h)

    def fold(self) -> None:
        """a into the output matrices."""
        for W in (self.attention.W_o, self.mlp.W_oMLP):
            W.absorb(self.a())
        if hasattr(self, "cross"):
            self.cross.W_o.absorb(self.a())
        self.a.spend()


class ReZero(Transformer):
    """The model of the table above."""

    cuts: ClassVar[dict[str, Cut]] = {
        "E_in": "vocabulary",
        "E_out": "vocabulary",
    }

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
