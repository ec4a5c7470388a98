"""Oracle of NormFormer and its Pre-LN and Post-LN baselines (Shleifer et al., "NormFormer: improved
transformer pretraining with extra normalization", sections 1 and 2).

  pre:  h' = h + LN_a(W_O Concat(gamma_n head_n(LN_1(h))) + b_O)
        h'' = lambda * h' + W_2 LN_f(sigma(W_1 LN_2(h') + b_1)) + b_2;   LN_final before the head
  post: h' = LN_1(h + MHA(h)),  h'' = LN_2(lambda * h' + FFN(h'))

| tensor                                  | paper   | shape          | present with          |
|-----------------------------------------|---------|----------------|-----------------------|
| E_in                                    |         | [V, d]         | always                |
| E_out                                   |         | [V, d]         | not tied              |
| P                                       |         | [T_max, d]     | positions="learned"   |
| layers.{i}.LN_1.gain, LN_1.bias         | LN      | [d]            | always                |
| layers.{i}.W_q; b_q                     | W^Q     | [d, d]; [d]    | always                |
| layers.{i}.W_k, W_v; b_k, b_v           | W^K, W^V| [d_kv, d]; [d_kv] | always             |
| layers.{i}.LN_q .gain .bias             | +3 LN   | [d]            | qkv_ln not "off"      |
| layers.{i}.LN_k, LN_v .gain .bias       | +3 LN   | [d_kv]         | qkv_ln not "off"      |
| layers.{i}.gamma                        | gamma   | [H]            | head_scale            |
| layers.{i}.W_O, b_O                     | W^O     | [d, d]; [d]    | always                |
| layers.{i}.LN_a.gain, LN_a.bias         | LN      | [d]            | post_attn_ln          |
| layers.{i}.LN_2.gain, LN_2.bias         | LN      | [d]            | always                |
| layers.{i}.W_1, b_1                     | W_1     | [d_f, d]; [d_f]| always                |
| layers.{i}.W_3, b_3                     |         | [d_f, d]; [d_f]| activation="geglu"    |
| layers.{i}.LN_f.gain, LN_f.bias         | LN      | [d_f]          | ffn_ln                |
| layers.{i}.W_2, b_2                     | W_2     | [d, d_f]; [d]  | always                |
| layers.{i}.lambda                       | lambda_resid | [d]       | res_scale             |
| LN_final.gain, LN_final.bias            | LN      | [d]            | norm="pre"            |

d_kv = H_kv d_k.

With seq2seq also "encoder.{i}.*" (as layers.{i}.* above) and in each decoder layer LN_X.gain, .bias
and cross.W_q, .b_q, .LN_q.gain, ..., .gamma, .W_O, .b_O, .LN_a.gain, .LN_a.bias (each with the
switch of its namesake above); for norm="pre" LN_encoder.gain, .bias.
  pre:  h = h + LN_a(HeadScaleMHA_X(LN_X(h), memory)), memory = LN_encoder(the encoder's last h)
  post: h = LN_X(h + LN_a(HeadScaleMHA_X(h, memory))), memory = the encoder's last h as it is
The scales in cross-attention are an extension: the paper has no encoder-decoder.

Decisions where the paper is silent:
- Embeddings are multiplied by sqrt(d), then positions are added (`scale_embedding=False`: not).
- Sinusoids as in fairseq, where the paper was trained: frequency i is 10000^(-i/(d/2 - 1)) for
  i = 0 .. d/2 - 1 (from 1 down to exactly 1/10000), all sines, then all cosines; an odd last
  feature is 0; d/2 = 1 has the frequency 1. fairseq counts from padding_idx + 1 = 2; here from 0.
- Learned positions are rows 0, 1, ... of P. Rotary positions turn q and k and add nothing.
- "+3 LN": over the full width (LN_k, LN_v: d_kv) before the split in heads and before RoPE
  (`"head"`: over each head's d_k, with gains still stored as [d] and [d_kv]).
- gamma is one per query head, with fewer heads of keys and values too.
- lambda multiplies the residual of the feed-forward sublayer alone, with cross-attention too.
- Post-LN has no final LN; the extra operations may be combined with it, inside MHA and FFN.
- GeGLU (section 5) as in Shazeer 2020, with biases like every matrix here.
- The softmax factor is 1/sqrt(d_k); the head has no bias; GELU is exact (erf).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import basics
from reference.basics import Tensors, head, linear, rope, under
from reference.trunk import Oracle


@dataclass(frozen=True)
class Settings:
    """NormFormer with ResScale, the first row of Table 4; `PRE_LN` and `POST_LN` turn all off."""

    n_layers: int
    n_heads: int
    norm: str = "pre"  # pre | post
    post_attn_ln: bool = True
    ffn_ln: bool = True
    head_scale: bool = True
    res_scale: bool = True
    qkv_ln: str = "off"  # off | width | head
    activation: str = "gelu"  # gelu | relu2 | relu | geglu
    positions: str = "sinusoidal"  # sinusoidal | learned | rotary
    rotary_fraction: float = 1.0
    scale_embedding: bool = True
    tied: bool = True
    causal: bool = True
    seq2seq: bool = False
    eps: float = 1e-5
    n_kv_heads: int | None = None  # none: n_heads
    window: int | None = None  # none: no window


PRE_LN = {"post_attn_ln": False, "ffn_ln": False, "head_scale": False, "res_scale": False}
POST_LN = {**PRE_LN, "norm": "post"}


def norm_shapes(name: str, n: int) -> dict[str, tuple[int, ...] | None]:
    """The tensors of one LN over n features."""
    return {f"{name}.gain": (n,), f"{name}.bias": (n,)}


def attention_shapes(s: Settings, d: int) -> dict[str, tuple[int, ...] | None]:
    """The tensors that `attention` reads."""
    d_kv = basics.kv_heads(s.n_heads, s.n_kv_heads) * (d // s.n_heads)
    out = {"q": d, "k": d_kv, "v": d_kv, "O": d}
    table: dict[str, tuple[int, ...] | None] = {f"W_{x}": (out[x], d) for x in "qkvO"}
    table |= {f"b_{x}": (out[x],) for x in "qkvO"}
    for x in "qkv" if s.qkv_ln != "off" else "":
        table |= norm_shapes(f"LN_{x}", out[x])
    table |= {"gamma": (s.n_heads,)} if s.head_scale else {}
    table |= norm_shapes("LN_a", d) if s.post_attn_ln else {}
    return table


def shapes(settings: Settings, V: int, d: int, d_f: int, T_max: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `forward` reads."""
    s = settings
    layer = norm_shapes("LN_1", d) | norm_shapes("LN_2", d) | attention_shapes(s, d)
    layer |= {"W_1": (d_f, d), "b_1": (d_f,), "W_2": (d, d_f), "b_2": (d,)}
    layer |= {"W_3": (d_f, d), "b_3": (d_f,)} if s.activation == "geglu" else {}
    layer |= norm_shapes("LN_f", d_f) if s.ffn_ln else {}
    layer |= {"lambda": (d,)} if s.res_scale else {}
    cross = norm_shapes("LN_X", d)
    cross |= {f"cross.{name}": shape for name, shape in attention_shapes(s, d).items()}
    table: dict[str, tuple[int, ...] | None] = {
        "E_in": (V, d),
        "P": (T_max, d) if s.positions == "learned" else None,
    }
    table |= basics.stack_shapes(s.n_layers, s.seq2seq, layer, cross)
    table |= norm_shapes("LN_encoder", d) if s.seq2seq and s.norm == "pre" else {}
    table |= norm_shapes("LN_final", d) if s.norm == "pre" else {}
    table |= {"E_out": None if s.tied else (V, d)}
    return basics.stored(table)


def layer_norm(x: Tensor, p: Tensors, name: str, eps: float, groups: int = 1) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + bias, mean and var over each of `groups` blocks."""
    parts = []
    for n in range(groups):
        block = head(x, n, groups)
        centred = block - block.sum(-1, keepdim=True) / block.shape[-1]
        variance = (centred * centred).sum(-1, keepdim=True) / block.shape[-1]
        parts.append(centred / torch.sqrt(variance + eps))
    return torch.cat(parts, dim=-1) * p[f"{name}.gain"] + p[f"{name}.bias"]


def sinusoids(positions: Tensor, d: int) -> Tensor:
    """[sin | cos] of position * 10000^(-i/(d/2 - 1)), zero in an odd last column."""
    half = d // 2
    columns = []
    for function in (torch.sin, torch.cos):
        for i in range(half):
            frequency = 10000.0 ** (-i / (half - 1)) if half > 1 else 1.0
            columns.append(function(positions.double() * frequency))
    columns += [torch.zeros_like(columns[0])] * (d - 2 * half)
    return torch.stack(columns, dim=-1)


def embed(tensors: Tensors, s: Settings, tokens: Tensor, positions: Tensor) -> Tensor:
    """sqrt(d) E_in[token], plus absolute positions."""
    h = tensors["E_in"][tokens]
    d = h.shape[-1]
    h = h * math.sqrt(d) if s.scale_embedding else h
    if s.positions == "sinusoidal":
        return h + sinusoids(positions, d)
    return h + tensors["P"][positions] if s.positions == "learned" else h


def attention(
    x: Tensor,
    p: Tensors,
    s: Settings,
    positions: Tensor,
    see: Tensor,
    memory: Tensor | None = None,
) -> Tensor:
    """LN_a(W_O Concat(gamma_n softmax(q k^T / sqrt(d_k)) v) + b_O).

    With memory: cross-attention, k and v from the memory and no RoPE.
    """
    H, H_kv = s.n_heads, basics.kv_heads(s.n_heads, s.n_kv_heads)
    d_k = x.shape[-1] // H
    projected = {}
    context = x if memory is None else memory
    for name, y in (("q", x), ("k", context), ("v", context)):
        y = linear(y, p[f"W_{name}"], p[f"b_{name}"])
        if s.qkv_ln != "off":
            own_heads = H if name == "q" else H_kv
            groups = own_heads if s.qkv_ln == "head" else 1
            y = layer_norm(y, p, f"LN_{name}", s.eps, groups)
        projected[name] = y
    heads = []
    for n in range(H):
        m = basics.kv_head_of(n, H, H_kv)
        q = head(projected["q"], n, H)
        k, v = head(projected["k"], m, H_kv), head(projected["v"], m, H_kv)
        if s.positions == "rotary" and memory is None:
            q, k = (rope(y, positions, s.rotary_fraction) for y in (q, k))
        output = basics.attend(q, k, v, 1 / math.sqrt(d_k), see)
        heads.append(p["gamma"][n] * output if s.head_scale else output)
    y = linear(torch.cat(heads, dim=-1), p["W_O"], p["b_O"])
    return layer_norm(y, p, "LN_a", s.eps) if s.post_attn_ln else y


def feed_forward(x: Tensor, p: Tensors, s: Settings) -> Tensor:
    """W_2 LN_f(sigma(W_1 x + b_1)) + b_2; geglu: sigma(..) is GELU(W_1 x + b_1) * (W_3 x + b_3)."""
    y = linear(x, p["W_1"], p["b_1"])
    if s.activation == "geglu":
        y = basics.ACTIVATIONS["gelu"](y) * linear(x, p["W_3"], p["b_3"])
    else:
        y = basics.ACTIVATIONS[s.activation](y)
    y = layer_norm(y, p, "LN_f", s.eps) if s.ffn_ln else y
    return linear(y, p["W_2"], p["b_2"])


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
    pre = s.norm == "pre"
    h_A = attention(layer_norm(h, p, "LN_1", s.eps) if pre else h, p, s, positions, see)
    states = [h + h_A if pre else layer_norm(h + h_A, p, "LN_1", s.eps)]
    if memory is not None and see_memory is not None:
        h, cross = states[-1], under(p, "cross")
        x = layer_norm(h, p, "LN_X", s.eps) if pre else h
        h_X = attention(x, cross, s, positions, see_memory, memory)
        states.append(h + h_X if pre else layer_norm(h + h_X, p, "LN_X", s.eps))
    h = states[-1]
    carried = p["lambda"] * h if s.res_scale else h
    h_M = feed_forward(layer_norm(h, p, "LN_2", s.eps) if pre else h, p, s)
    states.append(carried + h_M if pre else layer_norm(carried + h_M, p, "LN_2", s.eps))
    return states


def memory_of(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """LN of the encoder's last h, which Post-LN has already."""
    return h if s.norm == "post" else layer_norm(h, tensors, "LN_encoder", s.eps)


def logits(tensors: Tensors, s: Settings, h: Tensor) -> Tensor:
    """E_out LN(h); Post-LN has its LN already."""
    x = layer_norm(h, tensors, "LN_final", s.eps) if s.norm == "pre" else h
    return linear(x, tensors["E_in"] if s.tied else tensors["E_out"])


ORACLE = Oracle(embed, block, memory_of, logits)
encode, hidden_states = ORACLE.encode, ORACLE.hidden_states
forward, loss = ORACLE.forward, ORACLE.loss
