"""Recurrent token mixers in fp64, one token and one head at a time, from the formulas alone.

Gated DeltaNet: arXiv 2412.06464; Mamba-2: 2405.21060; gated linear attention: 2312.06635; on the
sphere as this project proposes them. `W` has the layer's tensors by the papers' names.
"""

import math

import torch
import torch.nn.functional as F


def convolved(x, w, bias=0.0):
    """SiLU(Σ_j w_j x_(t−j) + b) for x [T, c], w [c, width] whose last column meets x_t."""
    rows = []
    for t in range(len(x)):
        y = torch.zeros_like(x[0])
        for j in range(w.shape[1]):
            if t - j >= 0:
                y = y + w[:, w.shape[1] - 1 - j] * x[t - j]
        rows.append(F.silu(y + bias))
    return torch.stack(rows)


def rms(x, eps):
    """x over its root mean square."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def gated_deltanet(x, W, H, unit):
    """[T, d] -> [T, d]; W has W_q … W_o, conv_q …, A_log, dt_bias, and s_q … s_b or gain."""
    s = {n: W[f"s_{n}"] if unit else 1.0 for n in "qkvzab"}
    q, k, v = (convolved(s[n] * x @ W[f"W_{n}"].T, W[f"conv_{n}"]) for n in "qkv")
    z, a, b = (s[n] * x @ W[f"W_{n}"].T for n in "zab")
    K, V = q.shape[1] // H, v.shape[1] // H
    heads = []
    for h in range(H):
        S, outs = torch.zeros(K, V, dtype=x.dtype), []
        for t in range(len(x)):
            qt, kt = q[t, h * K : h * K + K], k[t, h * K : h * K + K]
            qt, kt = qt / qt.norm() / math.sqrt(K), kt / kt.norm()
            g = -W["A_log"][h].exp() * torch.log1p((a[t, h] + W["dt_bias"][h]).exp())
            beta = 1 / (1 + (-b[t, h]).exp())
            S = g.exp() * S
            S = S + torch.outer(kt, beta * (v[t, h * V : h * V + V] - S.T @ kt))
            o = S.T @ qt
            outs.append(o / o.norm() if unit else W["gain"] * rms(o, 1e-6))
        heads.append(torch.stack(outs))
    return (torch.cat(heads, dim=1) * F.silu(z)) @ W["W_o"].T


def mamba2(h, W, H, unit):
    """[T, d] -> [T, d]; W has W_z … W_o, conv_x …, bias_x …, A_log, …, and s_z … or norm."""
    s = {n: W[f"s_{n}"] if unit else 1.0 for n in ("z", "x", "B", "C", "dt")}
    x, B, C = (convolved(s[n] * h @ W[f"W_{n}"].T, W[f"conv_{n}"], W[f"bias_{n}"]) for n in "xBC")
    z, raw = (s[n] * h @ W[f"W_{n}"].T for n in ("z", "dt"))
    P = x.shape[1] // H
    heads = []
    for n in range(H):
        S, outs = torch.zeros(B.shape[1], P, dtype=h.dtype), []
        for t in range(len(h)):
            dt = torch.log1p((raw[t, n] + W["dt_bias"][n]).exp())
            xt = x[t, n * P : n * P + P]
            S = (-W["A_log"][n].exp() * dt).exp() * S + dt * torch.outer(B[t], xt)
            outs.append(S.T @ C[t] + W["D"][n] * xt)
        heads.append(torch.stack(outs))
    if unit:
        y = torch.cat([y / y.norm(dim=1, keepdim=True) for y in heads], dim=1) * F.silu(z)
    else:
        y = W["norm"] * rms(torch.cat(heads, dim=1) * F.silu(z), 1e-5)
    return y @ W["W_o"].T


def gated_linear_attention(x, W, H, unit):
    """[T, d] -> [T, d]; W has W_q … W_o, W_low, W_up, b, and s_z, s_low or gain."""
    s = {n: W[f"s_{n}"] if unit else 1.0 for n in ("z", "low")}
    q, k, v = (x @ W[f"W_{n}"].T for n in "qkv")
    z, low = (s[n] * x @ W[f"W_{n}"].T for n in ("z", "low"))
    decay = torch.sigmoid(low @ W["W_up"].T + W["b"]) ** (1 / 16)
    K, V = q.shape[1] // H, v.shape[1] // H
    heads = []
    for h in range(H):
        rows, columns = slice(h * K, h * K + K), slice(h * V, h * V + V)
        S, outs = torch.zeros(K, V, dtype=x.dtype), []
        for t in range(len(x)):
            S = decay[t, rows, None] * S + torch.outer(k[t, rows], v[t, columns])
            outs.append(S.T @ q[t, rows] / math.sqrt(K))
        o = torch.stack(outs)
        heads.append(o / o.norm(dim=1, keepdim=True) if unit else W["gain"] * rms(o, 1e-5))
    return (torch.cat(heads, dim=1) * F.silu(z)) @ W["W_o"].T
