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
| layers.{i}.W_q, W_k, W_v, W_o      | [d, d]                         |             |
| layers.{i}.W_u, W_nu               | [d_f, d]; W_nu is the gate     |             |
| layers.{i}.W_oMLP                  | [d, d_f]                       |             |
| DyT_final.alpha, .gamma, .beta     | as above                       | as above    |

Decisions where the equation is silent:
- embed_scale multiplies what goes in, h = embed_scale E_in[token]; a tied head uses E_in bare;
- every DyT has its own scalar alpha, used as stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics, gpt
from reference.basics import Tensors, linear, of_layer


@dataclass(frozen=True)
class Settings:
    """GPT's trunk with DyT for its norms."""

    n_layers: int
    n_heads: int
    bias: bool = True  # beta
    rotary_fraction: float = 1.0
    tied: bool = False
    causal: bool = True

    def trunk(self) -> gpt.Settings:
        """What GPT's sublayers read."""
        return gpt.Settings(self.n_layers, self.n_heads, rotary_fraction=self.rotary_fraction)


def dyt_shapes(name: str, d: int, bias: bool) -> dict[str, tuple[int, ...] | None]:
    """The tensors of one DyT."""
    return {f"{name}.alpha": (), f"{name}.gamma": (d,), f"{name}.beta": (d,) if bias else None}


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s = settings
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d), "embed_scale": ()}
    for i in range(s.n_layers):
        layer: dict[str, tuple[int, ...] | None] = {
            **dyt_shapes("DyT_A", d, s.bias),
            "W_q": (d, d),
            "W_k": (d, d),
            "W_v": (d, d),
            "W_o": (d, d),
            **dyt_shapes("DyT_M", d, s.bias),
            "W_u": (d_f, d),
            "W_nu": (d_f, d),
            "W_oMLP": (d, d_f),
        }
        table |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    table |= dyt_shapes("DyT_final", d, s.bias)
    table |= {"E_out": None if s.tied else (V, d)}
    return basics.stored(table)


def dyt(x: Tensor, p: Tensors, name: str, bias: bool) -> Tensor:
    """gamma * tanh(alpha x) (+ beta)."""
    y = p[f"{name}.gamma"] * torch.tanh(p[f"{name}.alpha"] * x)
    return y + p[f"{name}.beta"] if bias else y


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
    states = [tensors["embed_scale"] * tensors["E_in"][tokens]]
    for i in range(s.n_layers):
        p = of_layer(tensors, i)
        x = dyt(states[-1], p, "DyT_A", s.bias)
        states.append(states[-1] + gpt.attention(x, p, s.trunk(), positions, see))
        x = dyt(states[-1], p, "DyT_M", s.bias)
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
    return linear(dyt(h, tensors, "DyT_final", settings.bias), E_out)


def loss(
    tensors: Tensors, settings: Settings, tokens: Tensor, targets: Tensor, **where: Tensor | None
) -> Tensor:
    """Mean cross-entropy over the targets that are not -100; `where` as in `forward`."""
    return basics.cross_entropy(forward(tensors, settings, tokens, **where), targets)
