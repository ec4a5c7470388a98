"""Oracle of LN-scaling: h = h + F(RMSNorm(h) / sqrt(l)) in layer l = 1 ... L, otherwise GPT.

The sublayers F and RMSNorm are GPT's (`reference.gpt`): RoPE, softmax factor 1/sqrt(d_k), SwiGLU,
no bias, a learned gain in each RMSNorm.

| tensor                   | shape                           |
|--------------------------|---------------------------------|
| E_in, E_out              | [V, d]; E_out only if not tied  |
| layers.{i}.gain_A        | [d]                             |
| layers.{i}.W_q           | [d, d]                          |
| layers.{i}.W_k, W_v      | [H_kv d_k, d]                   |
| layers.{i}.W_o           | [d, d]                          |
| layers.{i}.gain_M        | [d]                             |
| layers.{i}.W_u, W_nu     | [d_f, d]; W_nu is the gate      |
| layers.{i}.W_oMLP        | [d, d_f]                        |
| gain_final               | [d]                             |

With qk_norm the attention is GPT+'s, and each layer (and cross) has its g: [H], [] or fixed.

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above), the gain_encoder [d] of the RMSNorm that
ends the encoder, and in each decoder layer gain_X [d] and cross.W_q, .W_k, .W_v, .W_o.
h = h + CROSS(RMSNorm_X(h) / sqrt(l), memory), where memory = RMSNorm(the encoder's last h).

layers.{i} and encoder.{i} are layer l = i + 1. Decisions where the equation is silent:
- 1/sqrt(l) multiplies the norm's output, gain included; every sublayer of a layer has its l;
- neither the RMSNorm before the head nor the memory is scaled.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, under
from reference.trunk import Oracle


@dataclass(frozen=True)
class Settings:
    """GPT's trunk; the scale has no switch."""

    n_layers: int
    n_heads: int
    qk_norm: bool = False
    g: str = "head"  # head | layer | fixed, with QK norm only
    rotary_fraction: float = 1.0
    eps: float = 1e-6
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


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads: GPT's (the scale is a constant)."""
    d_kv = basics.kv_heads(settings.n_heads, settings.n_kv_heads) * (d // settings.n_heads)
    layer: dict[str, tuple[int, ...] | None] = {
        "gain_A": (d,),
        "W_q": (d, d),
        "W_k": (d_kv, d),
        "W_v": (d_kv, d),
        "W_o": (d, d),
        "gain_M": (d,),
        "W_u": (d_f, d),
        "W_nu": (d_f, d),
        "W_oMLP": (d, d_f),
        "g": settings.g_shape(),
    }
    cross: dict[str, tuple[int, ...] | None] = {"gain_X": (d,)}
    cross |= {f"cross.W_{name}": layer[f"W_{name}"] for name in "qkvo"}
    cross |= {"cross.g": settings.g_shape()}
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    table |= basics.stack_shapes(settings.n_layers, settings.seq2seq, layer, cross)
    table |= {"gain_encoder": (d,) if settings.seq2seq else None}
    table |= {"gain_final": (d,), "E_out": None if settings.tied else (V, d)}
    return basics.stored(table)


def scaled_norm(h: Tensor, gain: Tensor, eps: float, layer: int) -> Tensor:
    """RMSNorm(h) / sqrt(layer); layers count from 1."""
    return gpt.rms_norm(h, gain, eps) / math.sqrt(layer)


def block(
    h: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
    see_memory: Tensor | None = None,
    *,
    layer: int,
) -> list[Tensor]:
    """h after self-attention, after cross-attention where there is a memory, and after the MLP."""
    x = scaled_norm(h, p["gain_A"], s.eps, layer)
    states = [h + gpt.attention(x, p, s.trunk(), positions, see)]
    if memory is not None and see_memory is not None:
        x = scaled_norm(states[-1], p["gain_X"], s.eps, layer)
        h_X = gpt.attention(x, under(p, "cross"), s.trunk(), positions, see_memory, memory)
        states.append(states[-1] + h_X)
    x = scaled_norm(states[-1], p["gain_M"], s.eps, layer)
    states.append(states[-1] + gpt.mlp(x, p, s.trunk()))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """E_in[token]."""
    return tensors["E_in"][tokens]


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """RMSNorm of the encoder's last h."""
    return gpt.rms_norm(h, tensors["gain_encoder"], s.eps)


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """E_out RMSNorm(h)."""
    E_out = tensors["E_in"] if s.tied else tensors["E_out"]
    return linear(gpt.rms_norm(h, tensors["gain_final"], s.eps), E_out)


ORACLE = Oracle(embed, block, memory_of, logits, numbered=True)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
