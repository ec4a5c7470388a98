"""Oracle of experts, token by token and expert by expert, from the formulas alone.

x is a token's input [d]. Of E experts, k are chosen:

    p_i = 1/(1 + exp(-s_r <w_i, x>))                 w_i the router's row i, s_r = 1 on GPT
    C   = the k experts with the largest p_i + b_i
    g_i = sqrt(p_i / sum over C of p_j)
    y   = sqrt(1/2) sum over C of g_i MLP_i(x) + sqrt(1/2) MLP_shared(x)

without a shared expert y = sum over C of g_i MLP_i(x). The MLPs, with scales that all routed
experts share (nGPT equations 17-21, anGPT Table 1, GPT with SwiGLU or ReLU^2):

    nGPT:  W_oMLP ((W_u x) s_u . SiLU((W_nu x) s_nu sqrt(d)))
    anGPT: nu_d W_d (nu_uz W_u x . SiLU(nu_uz sqrt(d) W_z x) nu_acf)
    GPT:   W_oMLP (W_u x . SiLU(W_nu x)),  or W_oMLP max(W_u x, 0)^2

After each step, n_i the tokens that expert i was given in it:

    b_i <- b_i + c sign(mean n - n_i), then b <- b - mean b
"""

import math

import torch
from torch import Tensor

from reference.basics import Tensors, silu

NU_ACF = 3.72035  # 1/sqrt(E SiLU(z)^2) for z of standard deviation 1/2


def ngpt_mlp(x: Tensor, w: Tensors) -> Tensor:
    """One nGPT expert of one token."""
    u = (w["W_u"] @ x) * w["s_u"]
    nu = (w["W_nu"] @ x) * w["s_nu"] * math.sqrt(len(x))
    return w["W_oMLP"] @ (u * silu(nu))


def angpt_mlp(x: Tensor, w: Tensors) -> Tensor:
    """One anGPT expert of one token."""
    d, d_f = len(x), len(w["W_u"])
    nu_uz, nu_d = math.sqrt(d / d_f), math.sqrt(d_f / d)
    u, z = nu_uz * (w["W_u"] @ x), nu_uz * math.sqrt(d) * (w["W_z"] @ x)
    return nu_d * (w["W_d"] @ (u * silu(z) * NU_ACF))


def gpt_mlp(x: Tensor, w: Tensors) -> Tensor:
    """One GPT expert of one token."""
    u = w["W_u"] @ x
    units = u * silu(w["W_nu"] @ x) if "W_nu" in w else u.clamp(min=0) ** 2
    return w["W_oMLP"] @ units


MLPS = {"ngpt": ngpt_mlp, "angpt": angpt_mlp, "gpt": gpt_mlp}


def chosen(x: Tensor, W_r: Tensor, s_r: Tensor, b: Tensor, k: int) -> tuple[list[int], Tensor]:
    """The experts of one token, and the scores of all."""
    p = torch.stack([1 / (1 + torch.exp(-s_r * (row @ x))) for row in W_r])
    order = sorted(range(len(p)), key=lambda i: -float((p[i] + b[i]).detach()))
    return order[:k], p


def forward(
    name: str,
    x: Tensor,
    W_r: Tensor,
    s_r: Tensor,
    b: Tensor,
    k: int,
    routed: list[Tensors],
    shared: Tensors | None,
) -> tuple[Tensor, list[int]]:
    """y of tokens x [n, d], and how many of them each expert was given."""
    outputs, n = [], [0] * len(routed)
    for token in x:
        C, p = chosen(token, W_r, s_r, b, k)
        total = sum(p[i] for i in C)
        y = torch.zeros_like(token)
        for i in C:
            n[i] += 1
            y = y + torch.sqrt(p[i] / total) * MLPS[name](token, routed[i])
        if shared is not None:
            y = math.sqrt(0.5) * y + math.sqrt(0.5) * MLPS[name](token, shared)
        outputs.append(y)
    return torch.stack(outputs), n


def balanced(b: list[float], n: list[int], c: float) -> list[float]:
    """The bias after a step."""
    mean = sum(n) / len(n)
    moved = [b_i + c * ((mean > n_i) - (mean < n_i)) for b_i, n_i in zip(b, n, strict=True)]
    return [value - sum(moved) / len(moved) for value in moved]
