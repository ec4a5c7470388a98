"""Gated DeltaNet: a state that forgets, and is corrected at each token (arXiv 2412.06464).

| step | formula |
|---|---|
| inputs | q, k, v = SiLU(conv(W_q x, W_k x, W_v x)), conv depthwise, causal, 4 tokens, no bias |
| | q = Norm(q)/√K, k = Norm(k) per head |
| decay | g = −e^A_log · softplus(W_a x + dt_bias), a logarithm per head, as in Mamba-2 |
| rate | β = σ(W_b x) per head |
| recurrence | S ← e^g S; S ← S + k ⊗ β(v − Sᵀk); o = Sᵀq |
| output | W_o(RMSNorm(o) ⊙ SiLU(W_z x)), one gain [V] for all heads |

In chunks of C tokens, G the sums of g from the chunk's start, D_ij = e^(G_i − G_j) for j ≤ i,
Q⁺ = e^G Q, K⁺ = e^G K:

    A = tril(β K Kᵀ ⊙ D, −1);  R = (I + A)⁻¹ β(V − K⁺S);  O = Q⁺S + (Q Kᵀ ⊙ D) R
    S ← e^(G_C) S + (e^(G_C − G) K)ᵀ R

Where rows of the matrices and h are unit vectors (nGPT, anGPT; this project's form), their products
are about 1/√d: a learned number s, √d at the start, multiplies those that go into SiLU, and
another, 0.02·d, those of a and b, which is what a start of N(0, 0.02²) gives them in GPT. Norm(o)
per head, without a gain, takes the place of RMSNorm. conv, A_log and dt_bias are free.

A_log starts as ln U(0.01, 16), dt_bias as softplus⁻¹ of dt, ln dt uniform in [ln 0.001, ln 0.1].
"""

import math
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.kernels.recurrence import Chunks
from unitsphere.models.config import ModelConfig, head_size
from unitsphere.models.context import SelfContext
from unitsphere.models.mixers.recurrent import (
    Free,
    RecurrentMixer,
    RecurrentState,
    decays,
    empty_state,
    in_chunks,
    input_scale,
    ones_,
    reach_of,
    segments_of,
    short_convolution,
    slow_log_rate_,
    softplus,
    time_step_,
    uniform_,
)
from unitsphere.models.parts import Matrices
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.norm import cast, rms_norm, unit_norm

CHUNK = 64
EPS = 1e-6


class GatedDeltaNet(RecurrentMixer):
    """The mixer of the table above."""

    tp_plan: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("W_q", "W_k", "W_v", "W_z", "W_a", "W_b"), "columns"),
        **dict.fromkeys(("s_q", "s_k", "s_v", "s_z", "s_a", "s_b"), "units"),
        **dict.fromkeys(("conv_q", "conv_k", "conv_v", "A_log", "dt_bias"), "channels"),
        "gain": "shared",
        "W_o": "rows",
    }

    def __init__(self, config: ModelConfig, W: Matrices) -> None:
        super().__init__()
        sizes, d = config.recurrence, config.d_model
        H = self.n_heads = sizes.n_heads or config.n_heads
        self.K = sizes.d_key or head_size(d, config.n_heads)
        self.V = sizes.d_value or head_size(d, config.n_heads)
        self.width = sizes.conv
        self.W_q, self.W_k = W.from_h(H * self.K), W.from_h(H * self.K)
        self.W_v, self.W_z = W.from_h(H * self.V), W.from_h(H * self.V)
        self.W_a, self.W_b = W.from_h(H), W.from_h(H)
        self.W_o = W.to_h(H * self.V)
        start = partial(uniform_, inputs=self.width)
        self.conv_q, self.conv_k = (Free((H * self.K, self.width), start) for _ in "qk")
        self.conv_v = Free((H * self.V, self.width), start)
        self.A_log, self.dt_bias = Free((H,), slow_log_rate_), Free((H,), time_step_)
        self.gain = None if W.unit else Free((self.V,), ones_, "gain")
        self.s_q, self.s_k, self.s_v, self.s_z = (input_scale(W, math.sqrt(d), d) for _ in "qkvz")
        self.s_a, self.s_b = input_scale(W, 0.02 * d, d), input_scale(W, 0.02 * d, d)

    def forward(self, x: Tensor, context: SelfContext) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        inputs = [self.W_q(x, self.s_q()), self.W_k(x, self.s_k()), self.W_v(x, self.s_v())]
        g, b, z = self.log_decay(x), self.W_b(x, self.s_b()), self.W_z(x, self.s_z())
        with torch.autocast(x.device.type, enabled=False):
            heads = self.heads(torch.cat(inputs, dim=-1), g, b, context)
        return self.W_o(cast(merge_heads(heads), z.dtype) * F.silu(z))

    def log_decay(self, x: Tensor) -> Tensor:
        """g [B, T, H], in fp32 or wider."""
        a = self.W_a(x, self.s_a())
        wide = torch.promote_types(a.dtype, torch.float32)
        return -self.A_log().to(wide).exp() * softplus(a.to(wide) + self.dt_bias())

    def heads(self, qkv: Tensor, g: Tensor, b: Tensor, context: SelfContext) -> Tensor:
        """o after its norm, [batch, H, time, V], in fp32 or wider; a state is updated.

        Padding writes nothing: its inputs of the convolution are 0, and so are its β and g.
        """
        H = g.shape[-1]
        state = context.state or self.init_state(len(g), 0)
        segments = segments_of(context.documents)
        narrow, qkv, beta = qkv.dtype, qkv.to(g.dtype), b.to(g.dtype).sigmoid()
        if context.real is not None:
            real = context.real[..., None]
            qkv, g, beta = qkv * real, g * real, beta * real
        weight = torch.cat([self.conv_q(), self.conv_k(), self.conv_v()])
        qkv, columns = short_convolution(qkv, weight, state.columns, segments)
        sizes = [H * self.K, H * self.K, H * self.V]
        q, k, v = (split_heads(y, H) for y in F.silu(qkv).split(sizes, dim=-1))
        q, k = unit_norm(q) / math.sqrt(self.K), unit_norm(k)
        form = recurrent if g.shape[1] == 1 else partial(CHUNKS, narrow)
        o, S = form(q, k, v, g.mT, beta.mT, S=state.S, segments=segments)
        if context.state is not None:
            state.S, state.columns = S, columns
        return unit_norm(o) if self.gain is None else rms_norm(o, self.gain(), EPS)

    def init_state(self, batch: int, length: int) -> RecurrentState:
        """S = 0 and no tokens before, however long the text will be; of the heads that are here."""
        like = self.A_log()
        H = len(like)
        return empty_state(like, batch, H, self.K, self.V, H * (2 * self.K + self.V), self.width)

    def flops(self, context: int, causal: bool) -> float:
        """Those of the convolution and of chunks of CHUNK tokens, forward and twice backward."""
        H, K, V, C = self.n_heads, self.K, self.V, min(CHUNK, context)
        within = C * (5 * K + 3 * V)  # K Kᵀ, Q Kᵀ, the solution for V and K⁺, (Q Kᵀ ⊙ D) R
        across = 6 * K * V  # K⁺S, Q⁺S, Kᵀ R
        return 3 * H * (within + across + 2 * self.width * (2 * K + V))


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    S: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o [B, H, T, V] and the last S, token by token: the definition, and how a text is decoded.

    q, k [B, H, T, K]; v [B, H, T, V]; g, β [B, H, T]; S [B, H, K, V]; segments [B, T].
    """
    decay, out = g.exp(), []
    if segments is not None:
        decay = decay * reach_of(segments, q.shape[2], 1, q.device).state[..., 0]
    for t in range(q.shape[2]):
        S = decay[:, :, t, None, None] * S
        error = beta[:, :, t, None] * (v[:, :, t] - read(S, k[:, :, t]))
        S = S + k[:, :, t, :, None] * error[:, :, None]
        out.append(read(S, q[:, :, t]))
    return torch.stack(out, dim=2), S


def read(S: Tensor, x: Tensor) -> Tensor:
    """Sᵀx: [B, H, K, V], [B, H, K] -> [B, H, V]."""
    return (x[:, :, None] @ S).squeeze(2)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    S: Tensor,
    segments: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The same as `recurrent`, in matrix products: only S passes from chunk to chunk."""
    T = q.shape[2]
    C = min(chunk, T)
    reach = reach_of(segments, T, C, q.device)
    q, k, v, g, beta = (in_chunks(x, C) for x in (q, k, v, g, beta[..., None]))
    D = decays(g, reach)
    kept, written = D.whole[..., None, None], (D.leaving[..., None] * k).mT
    A = (beta * (k @ k.mT) * D.within).tril(-1)
    right = beta * torch.cat([v, D.entering[..., None] * k], dim=-1)
    R_v, R_k = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], dim=-1
    )  # R = R_v − R_k S
    R, before = [], []
    for n in range(q.shape[2]):
        before.append(S)
        R.append(R_v[:, :, n] - R_k[:, :, n] @ S)
        S = kept[:, :, n] * S + written[:, :, n] @ R[n]
    o = (D.entering[..., None] * q) @ torch.stack(before, dim=2)
    o = o + (q @ k.mT * D.within) @ torch.stack(R, dim=2)
    return o.flatten(2, 3)[:, :, :T], S


CHUNKS = Chunks(chunked, "fla.ops.gated_delta_rule", "chunk_gated_delta_rule")
