"""Oracle of ReZero: h = h + a F(h), one learned scalar a per layer, and no norm anywhere.

The sublayers F are GPT's (`reference.gpt`): RoPE, softmax factor 1/sqrt(d_k), SwiGLU, no bias.

| tensor                   | shape                           |
|--------------------------|---------------------------------|
| E_in, E_out              | [V, d]; E_out only if not tied  |
| layers.{i}.a             | []; starts at 0                 |
| layers.{i}.W_q           | [d, d]                          |
| layers.{i}.W_k, W_v      | [H_kv d_k, d]                   |
| layers.{i}.W_o           | [d, d]                          |
| layers.{i}.W_u, W_nu     | [d_f, d]; W_nu is the gate      |
| layers.{i}.W_oMLP        | [d, d_f]                        |

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above) and in each decoder layer cross.W_q, .W_k,
.W_v, .W_o. h = h + a CROSS(h, memory), where memory is the encoder's last h as it is.

Decisions where the equation is silent:
- the sublayers of a layer share its one a;
- nothing is normalised before the head or after the encoder either, and embeddings are not scaled.
"""

from dataclasses import dataclass

from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, under
from reference.trunk import Oracle


@dataclass(frozen=True)
class Settings:
    """GPT's trunk without its norms."""

    n_layers: int
    n_heads: int
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
            rotary_fraction=self.rotary_fraction,
            n_kv_heads=self.n_kv_heads,
        )


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    d_kv = basics.kv_heads(settings.n_heads, settings.n_kv_heads) * (d // settings.n_heads)
    layer: dict[str, tuple[int, ...] | None] = {
        "a": (),
        "W_q": (d, d),
        "W_k": (d_kv, d),
        "W_v": (d_kv, d),
        "W_o": (d, d),
        "W_u": (d_f, d),
        "W_nu": (d_f, d),
        "W_oMLP": (d, d_f),
    }
    cross: dict[str, tuple[int, ...] | None] = {
        f"cross.W_{name}": layer[f"W_{name}"] for name in "qkvo"
    }
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    table |= basics.stack_shapes(settings.n_layers, settings.seq2seq, layer, cross)
    table |= {"E_out": None if settings.tied else (V, d)}
    return basics.stored(table)


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
    h_A = gpt.attention(h, p, s.trunk(), positions, see)
    states = [h + p["a"] * h_A]
    if memory is not None and see_memory is not None:
        cross = under(p, "cross")
        h_X = gpt.attention(states[-1], cross, s.trunk(), positions, see_memory, memory)
        states.append(states[-1] + p["a"] * h_X)
    states.append(states[-1] + p["a"] * gpt.mlp(states[-1], p, s.trunk()))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """E_in[token]."""
    return tensors["E_in"][tokens]


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """The encoder's last h."""
    return h


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """E_out h."""
    return linear(h, tensors["E_in"] if s.tied else tensors["E_out"])


ORACLE = Oracle(embed, block, memory_of, logits)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
