"""Oracle of the baselines: GPT (nGPT paper, section 2, equations 1, 4, 5, 12-14, 17-19) and GPT+
(anGPT paper, Table 1, left column).

| tensor                   | nGPT paper     | anGPT paper  | shape                              |
|--------------------------|----------------|--------------|------------------------------------|
| E_in, E_out              | E_input, E_output | W_e, W_h  | [V, d]; E_out only if not tied     |
| layers.{i}.gain_A        | RMSNorm's gain | gamma_a      | [d]                                |
| layers.{i}.W_q           | W_q            | W_qkv        | [d, d]                             |
| layers.{i}.W_k, W_v      | W_k, W_v       | W_qkv        | [H_kv d_k, d]                      |
| layers.{i}.W_o           | W_o            | W_p          | [d, d]                             |
| layers.{i}.g             |                | g            | [H] or []; with QK norm, not fixed |
| layers.{i}.gain_M        | RMSNorm's gain | gamma_m      | [d]                                |
| layers.{i}.W_u, W_nu     | W_u, W_v       | W_uz         | [d_f, d]; W_nu is the gate         |
| layers.{i}.W_oMLP        | W_oMLP         | W_d          | [d, d_f]                           |
| gain_final               | RMSNorm's gain | gamma_h      | [d]                                |

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above), the gain_encoder [d] of the RMSNorm that
ends the encoder, and in each decoder layer gain_X [d] and cross.W_q, .W_k, .W_v, .W_o, .g.
h = h + CROSS(RMSNorm_X(h), memory), where memory = RMSNorm(the encoder's last h).

g is used as stored (no s_init / s_scale); it starts at sqrt(d_k).

Decisions where the papers are silent:
- without QK norm the softmax factor is 1/sqrt(d_k) and there is no g;
- QK norm comes after RoPE (a rotation, so the order does not matter) and has no gain vector;
- d_rot is the largest even number not above rotary_fraction * d_k;
- embeddings are not scaled, tied or not;
- a factor c of every sublayer's output (HyperP, arXiv 2603.28743: 1/sqrt(2L)) is 1 unless given.

Switches of recent baselines (modded-nanogpt, track 3; all off by default):
- embedding_norm: h = RMSNorm_E(E_in[token]), with its gain_E [d]; a tied head has E_in as it is;
- activation "relu2": W_oMLP max(W_u x, 0)^2, and no W_nu;
- gated (this project's): F(x) 2 / (1 + exp(-w . x)) for F(x), x = RMSNorm(h), with layers.{i}.w_A,
  w_M (w_X) [d];
- output_norm (Peri-LN, arXiv 2502.02732): h = h + RMSNorm(F(RMSNorm(h))), with layers.{i}.gain_oA,
  gain_oM (gain_oX) [d]; c and the gate come after that norm;
- softcap c: z = c y / sqrt(c^2 + y^2) of the logits y;
- value_embeddings (as in nanochat): in the last layer and every second before it head n has
  v = (W_v x)_n + s_v[n] (E_v[token])_n, with layers.{i}.E_v [V, H_kv d_k] and s_v [H_kv];
- token_shift: the first h of token t is e_t + 2 / (1 + exp(-w_shift . x)) * s_shift * e_{t-1}, with
  s_shift and w_shift [d], e_t = E_in[token t] or its RMSNorm, and x = e_t / rms(e_t);
  e_{t-1} = 0 for the first token of a sequence or document. The encoder has the same two vectors;
- bigram_rows n: after the token shift h + s_2 x, x = W_2 E_2[r], with s_2 [d], W_2 [d, d/4] and
  E_2 [n, d/4]; r = (48271 (2^18 a + b) mod (2^31 - 1)) mod n for token b after token a; x = 0 for
  the first token of a sequence or document;
- key_offset (modded-nanogpt's partial key offset): the features of k that RoPE leaves are, after
  RoPE and norm, those of the token before; 0 for the first token of a sequence or document.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics
from reference.basics import Tensors, head, linear, rope, silu, under, unit
from reference.trunk import Oracle


@dataclass(frozen=True)
class Settings:
    """GPT is the default; GPT+ is qk_norm=True, rotary_fraction=0.5."""

    n_layers: int
    n_heads: int
    qk_norm: bool = False
    g: str = "head"  # head | layer | fixed, with QK norm only
    g_value: float | None = None  # the fixed g; None: sqrt(d_k)
    rotary_fraction: float = 1.0
    eps: float = 1e-6
    tied: bool = False
    causal: bool = True
    seq2seq: bool = False
    n_kv_heads: int | None = None  # none: n_heads
    window: int | None = None  # none: no window
    embedding_norm: bool = False
    activation: str = "swiglu"
    softcap: float | None = None
    branch: float = 1.0  # c: h = h + c F(norm(h))
    gated: bool = False
    output_norm: bool = False
    value_embeddings: bool = False
    token_shift: bool = False
    bigram_rows: int = 0
    key_offset: bool = False


def shapes(settings: Settings, V: int, d: int, d_f: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s = settings
    g_shape = {"head": (s.n_heads,), "layer": (), "fixed": None}[s.g] if s.qk_norm else None
    d_kv = basics.kv_heads(s.n_heads, s.n_kv_heads) * (d // s.n_heads)
    attention_shapes = {"W_q": (d, d), "W_k": (d_kv, d), "W_v": (d_kv, d), "W_o": (d, d)}
    attention_shapes |= {"g": g_shape}
    layer = {
        "gain_A": (d,),
        **attention_shapes,
        "gain_M": (d,),
        "W_u": (d_f, d),
        "W_nu": (d_f, d) if s.activation == "swiglu" else None,
        "W_oMLP": (d, d_f),
    }
    cross: dict[str, tuple[int, ...] | None] = {"gain_X": (d,)}
    if s.gated:
        layer |= {"w_A": (d,), "w_M": (d,)}
        cross |= {"w_X": (d,)}
    if s.output_norm:
        layer |= {"gain_oA": (d,), "gain_oM": (d,)}
        cross |= {"gain_oX": (d,)}
    cross |= {f"cross.{name}": shape for name, shape in attention_shapes.items()}
    table: dict[str, tuple[int, ...] | None] = {"E_in": (V, d)}
    table |= {"gain_E": (d,) if s.embedding_norm else None}
    table |= dict.fromkeys(("s_shift", "w_shift") if s.token_shift else (), (d,))
    table |= basics.bigram_shapes(s.bigram_rows, d)
    table |= basics.stack_shapes(s.n_layers, s.seq2seq, layer, cross)
    table |= {"gain_encoder": (d,) if s.seq2seq else None}
    table |= {"gain_final": (d,), "E_out": None if s.tied else (V, d)}
    if s.value_embeddings:
        H_kv = basics.kv_heads(s.n_heads, s.n_kv_heads)
        table = basics.with_value_embeddings(table, s.n_layers, s.seq2seq, V, d_kv, H_kv)
    return basics.stored(table)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean x^2 + eps) * gain."""
    mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
    return x / torch.sqrt(mean_square + eps) * gain


def attention(
    x: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
) -> Tensor:
    """GPT: softmax(q k^T / sqrt(d_k)); GPT+: softmax(g Norm(q) Norm(k)^T).

    With memory: cross-attention, k and v from the memory and no RoPE.
    """
    H, H_kv = s.n_heads, basics.kv_heads(s.n_heads, s.n_kv_heads)
    d_k = x.shape[-1] // H
    context = x if memory is None else memory
    q_all, k_all, v_all = linear(x, p["W_q"]), linear(context, p["W_k"]), linear(context, p["W_v"])
    heads = []
    for n in range(H):
        m = basics.kv_head_of(n, H, H_kv)
        q, k, v = head(q_all, n, H), head(k_all, m, H_kv), head(v_all, m, H_kv)
        if "e_v" in p and memory is None:
            v = v + p["s_v"][m] * head(p["e_v"], m, H_kv)
        if memory is None:
            q, k = (rope(y, positions, s.rotary_fraction) for y in (q, k))
        factor: Tensor | float = 1 / math.sqrt(d_k)
        if s.qk_norm:
            q, k = unit(q), unit(k)
            fixed = math.sqrt(d_k) if s.g_value is None else s.g_value
            factor = fixed if s.g == "fixed" else p["g"].expand(H)[n]
        if "earlier" in p and memory is None:
            k = basics.with_late_keys(k, p["earlier"], s.rotary_fraction)
        heads.append(basics.attend(q, k, v, factor, see))
    return linear(torch.cat(heads, dim=-1), p["W_o"])


def mlp(x: Tensor, p: Tensors, s: Settings) -> Tensor:
    """SwiGLU: W_oMLP (u * SiLU(nu)); relu2: W_oMLP max(u, 0)^2."""
    if s.activation == "relu2":
        u = linear(x, p["W_u"])
        return linear(torch.where(u > 0, u * u, 0.0), p["W_oMLP"])
    return linear(linear(x, p["W_u"]) * silu(linear(x, p["W_nu"])), p["W_oMLP"])


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

    def opened(x: Tensor, F_x: Tensor, place: str) -> Tensor:
        if s.output_norm:
            F_x = rms_norm(F_x, p[f"gain_o{place}"], s.eps)
        w = f"w_{place}"
        return F_x * 2 / (1 + torch.exp(-(x @ p[w])))[..., None] if s.gated else F_x

    x = rms_norm(h, p["gain_A"], s.eps)
    states = [h + s.branch * opened(x, attention(x, p, s, positions, see), "A")]
    if memory is not None and see_memory is not None:
        x = rms_norm(states[-1], p["gain_X"], s.eps)
        h_X = attention(x, under(p, "cross"), s, positions, see_memory, memory)
        states.append(states[-1] + s.branch * opened(x, h_X, "X"))
    x = rms_norm(states[-1], p["gain_M"], s.eps)
    states.append(states[-1] + s.branch * opened(x, mlp(x, p, s), "M"))
    return states


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """E_in[token], or its RMSNorm."""
    h = tensors["E_in"][tokens]
    return rms_norm(h, tensors["gain_E"], s.eps) if s.embedding_norm else h


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """RMSNorm of the encoder's last h."""
    return rms_norm(h, tensors["gain_encoder"], s.eps)


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """E_out RMSNorm(h), perhaps capped."""
    E_out = tensors["E_in"] if s.tied else tensors["E_out"]
    y = linear(rms_norm(h, tensors["gain_final"], s.eps), E_out)
    return y if s.softcap is None else s.softcap * y / torch.sqrt(s.softcap**2 + y * y)


ORACLE = Oracle(embed, block, memory_of, logits)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
