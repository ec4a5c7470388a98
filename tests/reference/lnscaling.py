"""Oracle of LN-scaling: h = h + F(RMSNorm(h) / sqrt(l)) in layer l = 1 ... L, otherwise GPT.

The sublayers F and RMSNorm are GPT's (`reference.gpt`): RoPE, softmax factor 1/sqrt(d_k), SwiGLU,
no bias, a learned gain in each RMSNorm.

| tensor                   | shape                           |
|--------------------------|---------------------------------|
| E_in, E_out              | [V, d]; E_out only if not tied  |
| layers.{i}.gain_A        | [d]                             |
| layers.{i}.W_q, W_k, W_v | [d, d]                          |
| layers.{i}.W_o           | [d, d]                          |
| layers.{i}.gain_M        | [d]                             |
| layers.{i}.W_u, W_nu     | [d_f, d]; W_nu is the gate      |
| layers.{i}.W_oMLP        | [d, d_f]                        |
| gain_final               | [d]                             |

layers.{i} is layer l = i + 1. Decisions where the equation is silent:
- 1/sqrt(l) multiplies the norm's output, gain included; both sublayers of a layer have its l;
- the RMSNorm before the head is not scaled.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, of_layer


@dataclass(frozen=True)
class Settings:
    """GPT's trunk; the scale has no switch."""

    n_layers: int
    n_heads: int
    rotary_fraction: float = 1.0
    eps: float = 1e-6
    tied: bool = False
    causal: bool = True

    def trunk(self) -> gpt.Settings:
        """What GPT's sublayers read."""
        return gpt.Settings(self.n_layers, self.n_heads, rotary_fraction=self.rotary_fraction)


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads: GPT's (the scale is a constant)."""
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    for i in range(settings.n_layers):
        layer = {
            "gain_A": (d,),
            "W_q": (d, d),
            "W_k": (d, d),
            "W_v": (d, d),
            "W_o": (d, d),
            "gain_M": (d,),
            "W_u": (d_f, d),
            "W_nu": (d_f, d),
            "W_oMLP": (d, d_f),
        }
        table |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    table |= {"gain_final": (d,), "E_out": None if settings.tied else (V, d)}
    return basics.stored(table)


def scaled_norm(h: Tensor, gain: Tensor, eps: float, layer: int) -> Tensor:
    """RMSNorm(h) / sqrt(layer); layers count from 1."""
    return gpt.rms_norm(h, gain, eps) / math.sqrt(layer)


def hidden_states(
    tensors: Tensors,
    settings: Settings,
    tokens: Tensor,
    mask: Tensor | None = None,
    left_padding: Tensor | None = None,
    positions: Tensor | None = None,
) -> list[Tensor]:
    """h [B, T, d] after the embedding and after each residual sum: 2L + 1 tensors."""
    basics.require_double(tensors)
    s = settings
    if positions is None:
        positions = basics.positions_of(tokens, left_padding)
    see = basics.visible(tokens, s.causal, mask, left_padding)
    states = [tensors["E_in"][tokens]]
    for i in range(s.n_layers):
        p = of_layer(tensors, i)
        x = scaled_norm(states[-1], p["gain_A"], s.eps, i + 1)
        states.append(states[-1] + gpt.attention(x, p, s.trunk(), positions, see))
        x = scaled_norm(states[-1], p["gain_M"], s.eps, i + 1)
        states.append(states[-1] + gpt.mlp(x, p))
    return states


def forward(
    tensors: Tensors,
    settings: Settings,
    tokens: Tensor,
    mask: Tensor | None = None,
    left_padding: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Logits [B, T, V]; see `basics.visible` for mask and left_padding."""
    h = hidden_states(tensors, settings, tokens, mask, left_padding, positions)[-1]
    E_out = tensors["E_in"] if settings.tied else tensors["E_out"]
    return linear(gpt.rms_norm(h, tensors["gain_final"], settings.eps), E_out)


def loss(
    tensors: Tensors, settings: Settings, tokens: Tensor, targets: Tensor, **where: Tensor | None
) -> Tensor:
    """Mean cross-entropy over the targets that are not -100; `where` as in `forward`."""
    return basics.cross_entropy(forward(tensors, settings, tokens, **where), targets)
