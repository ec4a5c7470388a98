"""Oracle of ReZero: h = h + a F(h), one learned scalar a per layer, and no norm anywhere.

The sublayers F are GPT's (`reference.gpt`): RoPE, softmax factor 1/sqrt(d_k), SwiGLU, no bias.

| tensor                   | shape                           |
|--------------------------|---------------------------------|
| E_in, E_out              | [V, d]; E_out only if not tied  |
| layers.{i}.a             | []; starts at 0                 |
| layers.{i}.W_q, W_k, W_v | [d, d]                          |
| layers.{i}.W_o           | [d, d]                          |
| layers.{i}.W_u, W_nu     | [d_f, d]; W_nu is the gate      |
| layers.{i}.W_oMLP        | [d, d_f]                        |

Decisions where the equation is silent:
- the attention and the MLP of a layer share its one a;
- nothing is normalised before the head either, and embeddings are not scaled.
"""

from dataclasses import dataclass

from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, of_layer


@dataclass(frozen=True)
class Settings:
    """GPT's trunk without its norms."""

    n_layers: int
    n_heads: int
    rotary_fraction: float = 1.0
    tied: bool = False
    causal: bool = True

    def trunk(self) -> gpt.Settings:
        """What GPT's sublayers read."""
        return gpt.Settings(self.n_layers, self.n_heads, rotary_fraction=self.rotary_fraction)


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    for i in range(settings.n_layers):
        layer = {
            "a": (),
            "W_q": (d, d),
            "W_k": (d, d),
            "W_v": (d, d),
            "W_o": (d, d),
            "W_u": (d_f, d),
            "W_nu": (d_f, d),
            "W_oMLP": (d, d_f),
        }
        table |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    table |= {"E_out": None if settings.tied else (V, d)}
    return basics.stored(table)


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
    if positions is None:
        positions = basics.positions_of(tokens, left_padding)
    see = basics.visible(tokens, settings.causal, mask, left_padding)
    states = [tensors["E_in"][tokens]]
    for i in range(settings.n_layers):
        p = of_layer(tensors, i)
        h_A = gpt.attention(states[-1], p, settings.trunk(), positions, see)
        states.append(states[-1] + p["a"] * h_A)
        states.append(states[-1] + p["a"] * gpt.mlp(states[-1], p))
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
    return linear(h, tensors["E_in"] if settings.tied else tensors["E_out"])


def loss(
    tensors: Tensors, settings: Settings, tokens: Tensor, targets: Tensor, **where: Tensor | None
) -> Tensor:
    """Mean cross-entropy over the targets that are not -100; `where` as in `forward`."""
    return basics.cross_entropy(forward(tensors, settings, tokens, **where), targets)
