"""Oracle of nGPT (Loshchilov et al., "nGPT: normalized Transformer with representation learning on
the hypersphere"; equation, section and table numbers are that paper's).

| tensor                    | paper              | shape                          | constraint |
|---------------------------|--------------------|--------------------------------|------------|
| E_in, E_out               | E_input, E_output  | [V, d]; E_out only if not tied | rows       |
| layers.{i}.W_q            | W_q                | [d, d]                         | rows       |
| layers.{i}.W_k, W_v       | W_k, W_v           | [H_kv d_k, d]                  | rows       |
| layers.{i}.W_o            | W_o                | [d, d]                         | columns    |
| layers.{i}.W_u, W_nu      | W_u, W_nu          | [d_f, d]                       | rows       |
| layers.{i}.W_oMLP         | W_oMLP             | [d, d_f]                       | columns    |
| layers.{i}.alpha_A, alpha_M | stored alpha_A, alpha_M | [d], [] or absent         |            |
| layers.{i}.w_A, w_M       | none               | [d], with "gated"              |            |
| layers.{i}.s_qk           | stored s_qk        | [H_kv, d_k], [] or absent      |            |
| layers.{i}.s_u, s_nu      | stored s_u, s_v    | [d_f], [] or absent            |            |
| s_z                       | stored s_z         | [V], [] or absent              |            |

Scales are the stored tensors; `Scale` says how the forward restores their value (section 2.5).

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above) and in each decoder layer alpha_X and
cross.W_q, .W_k, .W_v, .W_o, .s_qk, constrained as above. h = Norm(h + alpha_X (Norm(h_X) - h)),
where h_X attends to the encoder's last h as it is: it ends in a Norm already.

One scalar shared by s_u and s_v: pass the same tensor under both names, the gradients add up.

Decisions where the paper is silent or loose:
- QK-norm off removes Norm in equations 15, 16 and nothing else (A.9; section 2.6 step 4 calls the
  norm optional beside the factor sqrt(d_k)). `softmax_factor` replaces sqrt(d_k) if given.
- SLERP: theta = arccos(h . h_A) as in equation 6, one angle per token; a vector alpha gives each
  element its own two coefficients of that angle. Norm follows, which changes nothing for a scalar
  alpha and keeps |h| = 1 for a vector. Where sin(theta) < 1e-6 the coefficients are LERP's.
- `residual="lerp_nu"` is the arm "nGPT with LERP correction" of the anGPT paper (Figure 5):
  nu(alpha) = (1 - 2 alpha + 2 alpha^2)^(-1/2) in place of Norm.
- `residual="add"` is not a paper's: h = Norm(h + alpha h_A), h_A as long as it comes.
- `residual="gated"` is not a paper's: as "add", but h_A (h_X, h_M) is first multiplied by the
  number
  2 / (1 + exp(-w . h)), h the vector that the sublayer has read, w the layer's w_A (w_X, w_M).
- s_qk acts after RoPE (section 2.3.2: RoPE, then equations 15, 16). A vector s_qk that differs
  within a rotated pair therefore makes scores depend on absolute positions, not on i - j alone:
  with document masks it matters whether positions restart (pass `positions` to say so).
- With fewer heads of keys and values, s_qk has one row per such head: it scales the key and all
  the queries that read it.
- Normalising in the forward divides every matrix and embedding by its norm along its constrained
  axis before use; gradients then are those of the stored tensors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics
from reference.basics import (
    Scale,
    Tensors,
    effective,
    head,
    linear,
    rope,
    silu,
    under,
    unit,
)
from reference.trunk import Oracle

CONSTRAINED_AXIS = {
    "E_in": 1,
    "E_out": 1,
    "E_v": 1,
    "W_q": 1,
    "W_k": 1,
    "W_v": 1,
    "W_o": 0,
    "W_u": 1,
    "W_nu": 1,
    "W_oMLP": 0,
}


@dataclass(frozen=True)
class Settings:
    """The switches of Tables 4-6, A.2 and A.4; `paper` fills in the paper's scales."""

    n_layers: int
    n_heads: int
    s_qk: Scale
    s_u: Scale
    s_nu: Scale
    s_z: Scale
    alpha: Scale  # alpha_A, alpha_M and alpha_X
    absolute_alpha: bool = True
    qk_norm: bool = True
    softmax_factor: float | None = None  # None: sqrt(d_k)
    residual: str = "lerp"  # lerp | slerp | riemannian | lerp_nu | add | gated
    normalize_in_forward: bool = False
    tied: bool = False
    rotary_fraction: float = 1.0
    causal: bool = True
    seq2seq: bool = False
    n_kv_heads: int | None = None  # none: n_heads
    window: int | None = None  # none: no window
    value_embeddings: bool = False  # not the paper's: as in reference/gpt.py, rows of E_v unit
    token_shift: bool = False  # not the paper's: Norm of what reference/gpt.py has
    bigram_rows: int = 0  # not the paper's: as in reference/gpt.py, x of unit length, then Norm
    key_offset: bool = False  # not the paper's: as in reference/gpt.py, after s_qk


def paper(d: int, n_layers: int, n_heads: int, **changes: object) -> Settings:
    """Section 2.6's settings at width d, with `changes`."""
    slow = 1 / math.sqrt(d)
    scales: dict[str, object] = {
        "s_qk": Scale(init=1.0, scale=slow),
        "s_u": Scale(init=1.0, scale=1.0),
        "s_nu": Scale(init=1.0, scale=1.0),
        "s_z": Scale(init=1.0, scale=slow),
        "alpha": Scale(init=0.05, scale=slow),
    }
    return Settings(n_layers, n_heads, **(scales | changes))  # type: ignore[arg-type]


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s, d_k = settings, d // settings.n_heads
    H_kv = basics.kv_heads(s.n_heads, s.n_kv_heads)
    layer = {
        "W_q": (d, d),
        "W_k": (H_kv * d_k, d),
        "W_v": (H_kv * d_k, d),
        "W_o": (d, d),
        "W_u": (d_f, d),
        "W_nu": (d_f, d),
        "W_oMLP": (d, d_f),
        "alpha_A": basics.scale_shape(s.alpha, (d,)),
        "alpha_M": basics.scale_shape(s.alpha, (d,)),
        "s_qk": basics.scale_shape(s.s_qk, (H_kv, d_k)),
        "s_u": basics.scale_shape(s.s_u, (d_f,)),
        "s_nu": basics.scale_shape(s.s_nu, (d_f,)),
    }
    if s.residual == "gated":
        layer |= {"w_A": (d,), "w_M": (d,)}
    cross = {"alpha_X": layer["alpha_A"]} | ({"w_X": (d,)} if s.residual == "gated" else {})
    cross |= {f"cross.{name}": layer[name] for name in ("W_q", "W_k", "W_v", "W_o", "s_qk")}
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    table |= basics.stack_shapes(s.n_layers, s.seq2seq, layer, cross)
    table |= {"E_out": None if s.tied else (V, d), "s_z": basics.scale_shape(s.s_z, (V,))}
    table |= dict.fromkeys(("s_shift", "w_shift") if s.token_shift else (), (d,))
    table |= basics.bigram_shapes(s.bigram_rows, d)
    if s.value_embeddings:
        d_kv = H_kv * d_k
        table = basics.with_value_embeddings(table, s.n_layers, s.seq2seq, V, d_kv, H_kv)
    return basics.stored(table)


def normalized(tensors: Tensors) -> Tensors:
    """Section 2.6, step 2: every constrained vector divided by its norm."""
    return {
        name: unit(tensor, CONSTRAINED_AXIS[name.split(".")[-1]])
        if name.split(".")[-1] in CONSTRAINED_AXIS
        else tensor
        for name, tensor in tensors.items()
    }


def attention(
    h: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
) -> Tensor:
    """Equations 12-16: W_o Concat(softmax(sqrt(d_k) q k^T + M) v).

    With memory: cross-attention, k and v from the memory and no RoPE.
    """
    H, H_kv = s.n_heads, basics.kv_heads(s.n_heads, s.n_kv_heads)
    d_k = h.shape[-1] // H
    factor = math.sqrt(d_k) if s.softmax_factor is None else s.softmax_factor
    s_qk = effective(p, "s_qk", s.s_qk).expand(H_kv, d_k)
    context = h if memory is None else memory
    q_all, k_all, v_all = linear(h, p["W_q"]), linear(context, p["W_k"]), linear(context, p["W_v"])
    heads = []
    for n in range(H):
        m = basics.kv_head_of(n, H, H_kv)
        q, k, v = head(q_all, n, H), head(k_all, m, H_kv), head(v_all, m, H_kv)
        if "e_v" in p and memory is None:
            v = v + p["s_v"][m] * head(p["e_v"], m, H_kv)
        if memory is None:
            q, k = (rope(y, positions, s.rotary_fraction) for y in (q, k))
        if s.qk_norm:
            q, k = unit(q), unit(k)
        q, k = q * s_qk[m], k * s_qk[m]
        if "earlier" in p and memory is None:
            k = basics.with_late_keys(k, p["earlier"], s.rotary_fraction)
        heads.append(basics.attend(q, k, v, factor, see))
    return linear(torch.cat(heads, dim=-1), p["W_o"])


def mlp(h: Tensor, p: Tensors, s: Settings) -> Tensor:
    """Equations 17-21."""
    u = linear(h, p["W_u"]) * effective(p, "s_u", s.s_u)
    nu = linear(h, p["W_nu"]) * effective(p, "s_nu", s.s_nu) * math.sqrt(h.shape[-1])
    return linear(u * silu(nu), p["W_oMLP"])


def slerp(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """Equation 6."""
    cosine = (a * b).sum(-1, keepdim=True)
    safe = 1.0 - cosine * cosine > 1e-12
    theta = torch.acos(torch.where(safe, cosine, 0.0))
    weight_a = torch.where(safe, torch.sin((1 - alpha) * theta) / torch.sin(theta), 1 - alpha)
    weight_b = torch.where(safe, torch.sin(alpha * theta) / torch.sin(theta), alpha)
    return weight_a * a + weight_b * b


def step(h: Tensor, proposal: Tensor, alpha: Tensor, residual: str) -> Tensor:
    """Move h towards `proposal` (h_A, h_X or h_M), a unit vector unless it is added as it is."""
    if residual == "lerp":  # equations 10, 11
        return unit(h + alpha * (proposal - h))
    if residual == "slerp":
        return unit(slerp(h, proposal, alpha))
    if residual == "riemannian":  # equations 29, 30
        return unit(h - alpha * (h * (h * proposal).sum(-1, keepdim=True) - proposal))
    if residual == "lerp_nu":
        return (h + alpha * (proposal - h)) * (1 - 2 * alpha + 2 * alpha * alpha) ** -0.5
    if residual in ("add", "gated"):
        return unit(h + alpha * proposal)
    raise ValueError(residual)


def rate(p: Tensors, name: str, s: Settings) -> Tensor:
    """alpha_A, alpha_X or alpha_M as `step` takes it."""
    alpha = effective(p, name, s.alpha)
    return alpha.abs() if s.absolute_alpha else alpha


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

    def proposed(read: Tensor, x: Tensor, w: str) -> Tensor:
        if s.residual == "gated":
            return x * 2 / (1 + torch.exp(-(read @ p[w])))[..., None]
        return x if s.residual == "add" else unit(x)

    h_A = proposed(h, attention(h, p, s, positions, see), "w_A")
    states = [step(h, h_A, rate(p, "alpha_A", s), s.residual)]
    if memory is not None and see_memory is not None:
        cross = under(p, "cross")
        h_X = attention(states[-1], cross, s, positions, see_memory, memory)
        h_X = proposed(states[-1], h_X, "w_X")
        states.append(step(states[-1], h_X, rate(p, "alpha_X", s), s.residual))
    h_M = proposed(states[-1], mlp(states[-1], p, s), "w_M")
    states.append(step(states[-1], h_M, rate(p, "alpha_M", s), s.residual))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """E_in[token]."""
    return tensors["E_in"][tokens]


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """The encoder's last h."""
    return h


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """s_z * (E_out h) (equations 1 and 3)."""
    E_out = tensors["E_in"] if s.tied else tensors["E_out"]
    return effective(tensors, "s_z", s.s_z) * linear(h, E_out)


def used(tensors: Tensors, s: Settings) -> Tensors:
    """The weights that the forward pass reads: normalised if the settings say so."""
    return normalized(tensors) if s.normalize_in_forward else tensors


ORACLE = Oracle(embed, block, memory_of, logits, used, shifted=lambda h, s: unit(h), pair=unit)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
