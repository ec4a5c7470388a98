"""Oracle of anGPT (Franke et al., "Learning in compact spaces with approximately normalized
transformers"; table, section and appendix letters are that paper's).

| tensor                      | paper          | shape                       | constraint |w| <= 1 |
|-----------------------------|----------------|-----------------------------|--------------------|
| E_in, W_h                   | W_e, W_h       | [V, d]; W_h if not tied     | rows               |
| layers.{i}.W_q              | W_qkv          | [d, d]                      | rows               |
| layers.{i}.W_k, W_v         | W_qkv          | [H_kv d_k, d]               | rows               |
| layers.{i}.W_p              | W_p            | [d, d]                      | rows               |
| layers.{i}.W_u, W_z         | W_uz           | [d_f, d]                    | rows               |
| layers.{i}.W_d              | W_d            | [d, d_f]                    | rows               |
| layers.{i}.alpha_A, alpha_M | stored alpha_a, alpha_m | [d], [] or absent  |                    |
| layers.{i}.g                | g              | [H] or []; absent if fixed  |                    |
| s_z                         | stored s_z     | [V], [] or absent           |                    |

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above) and in each decoder layer alpha_X and
cross.W_q, .W_k, .W_v, .W_p, .g, constrained as above. h_X = Norm(W_p(A v) nu_p) and
h = (h + alpha_X (h_X - h)) nu(alpha_X), where k and v come from the encoder's last h as it is.

alpha and s_z are the stored tensors (value = stored * s_init / s_scale, section 4.3); g is used as
stored and starts at sqrt(d_k).

Decisions where the paper is silent or wrong:
- nu(alpha) = (1 - 2 alpha + 2 alpha^2)^(-1/2): section 4.2's nu^-1 = sqrt(E|x|^2), not the text of
  section 4.3. `residual="plain"` leaves the factor out, `"norm"` uses Norm in its place.
- alpha is used as its absolute value: section 4.2 gives the rule with alpha > 0; with
  `absolute_alpha=False` as stored.
- z carries a gain sqrt(d) by default (`z_gain="sqrt_d"`), as in nGPT's equation 21; `"1"` is the
  literal Table 1. The gain multiplies W_z h nu_uz, before the activation.
- nu_acf "exact" is 1/sqrt(E f(x)^2), x ~ N(0, sigma^2), sigma the std of z for unit rows and
  |h| = 1: sqrt(d/d_f)/sqrt(d) times z's gain.
- Appendix D: row i of the attention matrix is multiplied by sqrt(r_i), r_i the number of keys that
  query i may attend to (causality, window, documents, mask and padding all counted); in
  cross-attention, the number of source tokens that it sees.
- g is one per query head, and nu_qkv and nu_p keep d and d_k, with fewer heads of keys and
  values too.
- d_rot is the largest even number not above rotary_fraction * d_k.

nu_qkv, nu_p, nu_d, nu_acf and sqrt(r_i) multiply a vector that Norm then divides by its length, so
they cancel exactly, in the logits and in every parameter's gradient; nu_uz acts through z only.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics
from reference.basics import Scale, Tensors, effective, head, linear, rope, under, unit
from reference.trunk import Oracle

NU_ACF_PAPER = 3.74


@dataclass(frozen=True)
class Settings:
    """The switches of Table 1, Figure 5 and Appendix D; defaults are the paper's values."""

    n_layers: int
    n_heads: int
    alpha: Scale = Scale(init=0.05, scale=0.01)
    s_z: Scale = Scale(init=1.0, scale=0.01)
    g: str = "head"  # head | layer | fixed
    g_value: float | None = None  # the fixed g; None: sqrt(d_k)
    z_gain: str = "sqrt_d"  # sqrt_d | 1
    nu_acf: str = "paper"  # paper | exact
    activation: str = "silu"  # silu | gelu | relu2 | relu
    residual: str = "nu"  # nu | plain | norm
    absolute_alpha: bool = True
    attention_factor: bool = False  # Appendix D
    rotary_fraction: float = 0.5
    tied: bool = False
    causal: bool = True
    seq2seq: bool = False
    n_kv_heads: int | None = None  # none: n_heads
    window: int | None = None  # none: no window
    token_shift: bool = False  # not the paper's: what reference/gpt.py has / sqrt(1 + mean s^2)
    bigram_rows: int = 0  # not the paper's: reference/gpt.py's, unit x, / sqrt(1 + mean s_2^2)
    key_offset: bool = False  # not the paper's: as in reference/gpt.py


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s = settings
    d_kv = basics.kv_heads(s.n_heads, s.n_kv_heads) * (d // s.n_heads)
    layer = {
        "W_q": (d, d),
        "W_k": (d_kv, d),
        "W_v": (d_kv, d),
        "W_p": (d, d),
        "W_u": (d_f, d),
        "W_z": (d_f, d),
        "W_d": (d, d_f),
        "alpha_A": basics.scale_shape(s.alpha, (d,)),
        "alpha_M": basics.scale_shape(s.alpha, (d,)),
        "g": {"head": (s.n_heads,), "layer": (), "fixed": None}[s.g],
    }
    cross = {"alpha_X": layer["alpha_A"]}
    cross |= {f"cross.{name}": layer[name] for name in ("W_q", "W_k", "W_v", "W_p", "g")}
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    table |= basics.stack_shapes(s.n_layers, s.seq2seq, layer, cross)
    table |= {"W_h": None if s.tied else (V, d), "s_z": basics.scale_shape(s.s_z, (V,))}
    table |= dict.fromkeys(("s_shift", "w_shift") if s.token_shift else (), (d,))
    table |= basics.bigram_shapes(s.bigram_rows, d)
    return basics.stored(table)


def nu_alpha(alpha: Tensor) -> Tensor:
    """(1 - 2 alpha + 2 alpha^2)^(-1/2), element by element."""
    return 1 / torch.sqrt(1 - 2 * alpha + 2 * alpha * alpha)


def nu_activation(activation: str, sigma: float) -> float:
    """1 / sqrt(E f(x)^2) for x ~ N(0, sigma^2), by the trapezoid rule over 12 standard deviations.

    The rule is spectrally accurate for SiLU and GELU, and exact to about 1e-12 for the others.
    """
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    value = basics.ACTIVATIONS[activation](sigma * x)
    mean_square = float((density * value * value).sum()) * 24 / 200_000
    return 1 / math.sqrt(mean_square)


def z_std(settings: Settings, d: int, d_f: int) -> float:
    """Std of z for unit rows of W_z and |h| = 1: 1/2 with the gain sqrt(d) and d_f = 4d."""
    gain = math.sqrt(d) if settings.z_gain == "sqrt_d" else 1.0
    return math.sqrt(d / d_f) / math.sqrt(d) * gain


def attention(
    h: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
) -> Tensor:
    """W_p (A v) nu_p with A = softmax(g Norm(q) Norm(k)^T).

    With memory: cross-attention, k and v from the memory and no RoPE.
    """
    d, H, H_kv = h.shape[-1], s.n_heads, basics.kv_heads(s.n_heads, s.n_kv_heads)
    d_k = d // H
    nu_qkv, nu_p = math.sqrt(d / d_k), math.sqrt(d_k / d)
    context = h if memory is None else memory
    q_all = linear(h, p["W_q"]) * nu_qkv
    k_all = linear(context, p["W_k"]) * nu_qkv
    v_all = linear(context, p["W_v"]) * nu_qkv
    fixed = math.sqrt(d_k) if s.g_value is None else s.g_value
    heads = []
    for n in range(H):
        m = basics.kv_head_of(n, H, H_kv)
        q, k, v = head(q_all, n, H), head(k_all, m, H_kv), head(v_all, m, H_kv)
        if memory is None:
            q, k = (rope(y, positions, s.rotary_fraction) for y in (q, k))
        q, k = unit(q), unit(k)
        if "earlier" in p and memory is None:
            k = basics.with_late_keys(k, p["earlier"], s.rotary_fraction)
        g = fixed if s.g == "fixed" else p["g"].expand(H)[n]
        A = basics.softmax(g * (q @ k.transpose(1, 2)), see)
        if s.attention_factor:
            A = A * torch.sqrt(see.sum(-1, keepdim=True).double())
        heads.append(A @ v)
    return linear(torch.cat(heads, dim=-1), p["W_p"]) * nu_p


def mlp(h: Tensor, p: Tensors, s: Settings) -> Tensor:
    """W_d (u * f(z) nu_acf) nu_d."""
    d, d_f = h.shape[-1], p["W_u"].shape[0]
    nu_uz, nu_d = math.sqrt(d / d_f), math.sqrt(d_f / d)
    nu_acf = NU_ACF_PAPER
    if s.nu_acf == "exact":
        nu_acf = nu_activation(s.activation, z_std(s, d, d_f))
    u = linear(h, p["W_u"]) * nu_uz
    z = linear(h, p["W_z"]) * nu_uz * (math.sqrt(d) if s.z_gain == "sqrt_d" else 1.0)
    return linear(u * basics.ACTIVATIONS[s.activation](z) * nu_acf, p["W_d"]) * nu_d


def step(h: Tensor, proposal: Tensor, stored_alpha: Tensor, s: Settings) -> Tensor:
    """(h + alpha (proposal - h)) nu(alpha)."""
    alpha = stored_alpha.abs() if s.absolute_alpha else stored_alpha
    moved = h + alpha * (proposal - h)
    return {"nu": moved * nu_alpha(alpha), "plain": moved, "norm": unit(moved)}[s.residual]


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
    h_A = unit(attention(h, p, s, positions, see))
    states = [step(h, h_A, effective(p, "alpha_A", s.alpha), s)]
    if memory is not None and see_memory is not None:
        cross = under(p, "cross")
        h_X = unit(attention(states[-1], cross, s, positions, see_memory, memory))
        states.append(step(states[-1], h_X, effective(p, "alpha_X", s.alpha), s))
    h_M = unit(mlp(states[-1], p, s))
    states.append(step(states[-1], h_M, effective(p, "alpha_M", s.alpha), s))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """E_in[token]."""
    return tensors["E_in"][tokens]


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """The encoder's last h."""
    return h


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """s_z * (W_h h)."""
    W_h = tensors["E_in"] if s.tied else tensors["W_h"]
    return effective(tensors, "s_z", s.s_z) * linear(h, W_h)


def shifted(h: Tensor, s: Tensor) -> Tensor:
    """h / sqrt(1 + mean s^2)."""
    return h / torch.sqrt(1 + (s * s).sum() / len(s))


ORACLE = Oracle(embed, block, memory_of, logits, shifted=shifted, pair=unit)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
