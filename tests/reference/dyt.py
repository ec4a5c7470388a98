"""Oracle of DyT: DyT(x) = gamma * tanh(alpha x) + beta in place of each norm of GPT.

The sublayers are GPT's (`reference.gpt`): h = h + ATTN(DyT_A(h)), h = h + MLP(DyT_M(h)), RoPE,
softmax factor 1/sqrt(d_k), SwiGLU, no bias in them.

| tensor                             | shape                          | starts at   |
|------------------------------------|--------------------------------|-------------|
| E_in, E_out                        | [V, d]; E_out only if not tied |             |
| embed_scale                        | []                             | sqrt(d)     |
| layers.{i}.DyT_A.alpha, DyT_M.alpha| []                             | 0.5         |
| layers.{i}.DyT_A.gamma, DyT_M.gamma| [d]                            | 1           |
| layers.{i}.DyT_A.beta, DyT_M.beta  | [d]; only with bias            | 0           |
| layers.{i}.W_q, W_o                | [d, d]                         |             |
| layers.{i}.W_k, W_v                | [H_kv d_k, d]                  |             |
| layers.{i}.W_u, W_nu               | [d_f, d]; W_nu is the gate     |             |
| layers.{i}.W_oMLP                  | [d, d_f]                       |             |
| DyT_final.alpha, .gamma, .beta     | as above                       | as above    |

With qk_norm the attention is GPT+'s, and each layer (and cross) has its g: [H], [] or fixed.

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above), DyT_encoder.alpha, .gamma, .beta for the
DyT that ends the encoder, and in each decoder layer DyT_X.alpha, .gamma, .beta and cross.W_q, .W_k,
.W_v, .W_o. h = h + CROSS(DyT_X(h), memory), where memory = DyT_encoder(the encoder's last h).

Decisions where the equation is silent:
- embed_scale multiplies what goes in, h = embed_scale E_in[token], source and target alike; a tied
  head uses E_in bare;
- every DyT has its own scalar alpha, used as stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, under
from reference.trunk import Oracle


@dataclass(frozen=True)
class Settings:
    """GPT's trunk with DyT for its norms."""

    n_layers: int
    n_heads: int
    bias: bool = True  # beta
    qk_norm: bool = False
    g: str = "head"  # head | layer | fixed, with QK norm only
    rotary_fraction: float = 1.0
    tied: bool = False
    causal: bool = True
    seq2seq: bool = False
    n_kv_heads: int | None = None  # none: n_heads
    window: int | None = None  # none: no window

    def trunk(self) -> gpt.Settings:
        """What GPT's sublayers read."""
        return gpt.Settings(
            self.n_layers,
            self.n_heads,
            qk_norm=self.qk_norm,
            g=self.g,
            rotary_fraction=self.rotary_fraction,
            n_kv_heads=self.n_kv_heads,
        )

    def g_shape(self) -> tuple[int, ...] | None:
        """Of GPT+'s g, if it is learned."""
        learned = {"head": (self.n_heads,), "layer": (), "fixed": None}[self.g]
        return learned if self.qk_norm else None


def dyt_shapes(name: str, d: int, bias: bool) -> dict[str, tuple[int, ...] | None]:
    """The tensors of one DyT."""
    return {f"{name}.alpha": (), f"{name}.gamma": (d,), f"{name}.beta": (d,) if bias else None}


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s = settings
    d_kv = basics.kv_heads(s.n_heads, s.n_kv_heads) * (d // s.n_heads)
    layer: dict[str, tuple[int, ...] | None] = {
        **dyt_shapes("DyT_A", d, s.bias),
        "W_q": (d, d),
        "W_k": (d_kv, d),
        "W_v": (d_kv, d),
        "W_o": (d, d),
        **dyt_shapes("DyT_M", d, s.bias),
        "W_u": (d_f, d),
        "W_nu": (d_f, d),
        "W_oMLP": (d, d_f),
        "g": s.g_shape(),
    }
    cross = dyt_shapes("DyT_X", d, s.bias)
    cross |= {f"cross.W_{name}": layer[f"W_{name}"] for name in "qkvo"}
    cross |= {"cross.g": s.g_shape()}
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d), "embed_scale": ()}
    table |= basics.stack_shapes(s.n_layers, s.seq2seq, layer, cross)
    table |= dyt_shapes("DyT_encoder", d, s.bias) if s.seq2seq else {}
    table |= dyt_shapes("DyT_final", d, s.bias)
    table |= {"E_out": None if s.tied else (V, d)}
    return basics.stored(table)


def dyt(x: Tensor, p: Tensors, name: str, bias: bool) -> Tensor:
    """gamma * tanh(alpha x) (+ beta)."""
    y = p[f"{name}.gamma"] * torch.tanh(p[f"{name}.alpha"] * x)
    return y + p[f"{name}.beta"] if bias else y


def block(
    h: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
    see_memory: Tensor | None = None,
) -> list[Tensor]:
    """h after self-attention, after cross-attention where there is a memory, and after the MLP."""
    x = dyt(h, p, "DyT_A", s.bias)
    states = [h + gpt.attention(x, p, s.trunk(), positions, see)]
    if memory is not None and see_memory is not None:
        x = dyt(states[-1], p, "DyT_X", s.bias)
        h_X = gpt.attention(x, under(p, "cross"), s.trunk(), positions, see_memory, memory)
        states.append(states[-1] + h_X)
    x = dyt(states[-1], p, "DyT_M", s.bias)
    states.append(states[-1] + gpt.mlp(x, p, s.trunk()))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """embed_scale * E_in[token]."""
    return tensors["embed_scale"] * tensors["E_in"][tokens]


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """DyT of the encoder's last h."""
    return dyt(h, tensors, "DyT_encoder", s.bias)


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """E_out DyT(h)."""
    E_out = tensors["E_in"] if s.tied else tensors["E_out"]
    return linear(dyt(h, tensors, "DyT_final", s.bias), E_out)


ORACLE = Oracle(embed, block, memory_of, logits)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
