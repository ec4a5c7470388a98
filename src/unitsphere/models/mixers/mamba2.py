"""Mamba-2: a state that all channels of a head forget at one rate (arXiv 2405.21060).

| step | formula |
|---|---|
| inputs | x, B, C = SiLU(conv(W_x h, W_B h, W_C h) + bias), conv depthwise, causal, 4 tokens |
| | B and C [N] are shared by all heads of x [H, P] |
| step | dt = softplus(W_dt h + dt_bias), g = −e^A_log · dt, one of each per head |
| recurrence | S ← e^g S + B ⊗ dt·x; y = SᵀC + D·x |
| output | W_o RMSNorm(y ⊙ SiLU(W_z h)), over all heads |

In chunks of C tokens, with k = B, q = C, v = dt·x and the G and D_ij of Gated DeltaNet:

    O = Q⁺S + (Q Kᵀ ⊙ D_ij) V;  S ← e^(G_C) S + (e^(G_C − G) K)ᵀ V

Where rows of the matrices and h are unit vectors (this project's form), a learned number s, √d at
the start, multiplies what goes into SiLU, another, 0.02·d, W_dt h, as in Gated DeltaNet; Norm(y)
per head, without a gain, ⊙ SiLU(z) takes the place of RMSNorm. The rest is free.

A_log starts as ln U(1, 16), dt_bias as softplus⁻¹ of dt, ln dt uniform in [ln 0.001, ln 0.1], and D
as 1.
H·P is 2·d, P 64 and N 128 unless `model.recurrence` says otherwise.
"""

import math
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.kernels.recurrence import Chunks
from unitsphere.models.config import ModelConfig
from unitsphere.models.context import SelfContext
from unitsphere.models.mixers.recurrent import (
    Free,
    RecurrentMixer,
    RecurrentState,
    decays,
    empty_state,
    in_chunks,
    input_scale,
    log_rate_,
    ones_,
    reach_of,
    segments_of,
    short_convolution,
    softplus,
    time_step_,
    uniform_,
)
from unitsphere.models.parts import Matrices, RMSNorm
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.norm import cast, unit_norm

CHUNK = 64
EPS = 1e-5


class Mamba2(RecurrentMixer):
    """The mixer of the table above; in the code C is q, B is k, N is K and P is V."""

    tp_plan: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("W_z", "W_x", "W_dt"), "columns"),
        **dict.fromkeys(("s_z", "s_x", "s_dt"), "units"),
        **dict.fromkeys(("conv_x", "bias_x", "A_log", "dt_bias", "D"), "channels"),
        **dict.fromkeys(("W_B", "W_C", "conv_B", "conv_C", "bias_B", "bias_C"), "shared"),
        "norm": "gathered",
        "W_o": "rows",
    }

    def __init__(self, config: ModelConfig, W: Matrices) -> None:
        super().__init__()
        sizes, d = config.recurrence, config.d_model
        self.K, self.V = sizes.d_key or 128, sizes.d_value or 64
        if sizes.n_heads is None and 2 * d % self.V:
            raise UserError(
                f"mamba2: 2·d_model {2 * d} is not divisible by model.recurrence.d_value "
                f"{self.V}: change one of them, or give model.recurrence.n_heads"
            )
        H = self.n_heads = sizes.n_heads or 2 * d // self.V
        inner, self.width = H * self.V, sizes.conv
        self.W_z, self.W_x = W.from_h(inner), W.from_h(inner)
        self.W_B, self.W_C = W.from_h(self.K), W.from_h(self.K)
        self.W_dt, self.W_o = W.from_h(H), W.to_h(inner)
        self.conv_x, self.bias_x = self.convolution(inner)
        self.conv_B, self.bias_B = self.convolution(self.K)
        self.conv_C, self.bias_C = self.convolution(self.K)
        self.A_log, self.dt_bias = Free((H,), log_rate_), Free((H,), time_step_)
        self.D = Free((H,), ones_)
        self.norm = None if W.unit else RMSNorm(inner, EPS)
        self.s_z, self.s_x, self.s_B, self.s_C = (input_scale(W, math.sqrt(d), d) for _ in "zxBC")
        self.s_dt = input_scale(W, 0.02 * d, d)

    def convolution(self, channels: int) -> tuple[Free, Free]:
        """A weight [channels, width] and a bias."""
        start = partial(uniform_, inputs=self.width)
        return Free((channels, self.width), start), Free((channels,), start)

    def forward(self, h: Tensor, context: SelfContext) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        inputs = [self.W_x(h, self.s_x()), self.W_B(h, self.s_B()), self.W_C(h, self.s_C())]
        dt, z = self.step(h), self.W_z(h, self.s_z())
        with torch.autocast(h.device.type, enabled=False):
            y = self.heads(inputs, dt, context)
        if self.norm is not None:
            return self.W_o(self.norm(cast(merge_heads(y), z.dtype) * F.silu(z)))
        return self.W_o(cast(merge_heads(unit_norm(y)), z.dtype) * F.silu(z))

    def step(self, h: Tensor) -> Tensor:
        """dt [B, T, H], in fp32 or wider."""
        dt = self.W_dt(h, self.s_dt())
        wide = torch.promote_types(dt.dtype, torch.float32)
        return softplus(dt.to(wide) + self.dt_bias())

    def rate(self) -> Tensor:
        """A = −e^A_log [H], in fp32 or wider."""
        A_log = self.A_log()
        return -A_log.to(torch.promote_types(A_log.dtype, torch.float32)).exp()

    def log_decay(self, x: Tensor) -> Tensor:
        """g [B, T, H], in fp32 or wider."""
        return self.rate() * self.step(x)

    def heads(self, inputs: list[Tensor], dt: Tensor, context: SelfContext) -> Tensor:
        """y [batch, H, time, P], in fp32 or wider, the state updated if there is one.

        Padding writes nothing: its x, B, C and dt are 0.
        """
        H = dt.shape[-1]
        state = context.state or self.init_state(len(dt), 0)
        segments = segments_of(context.documents)
        xBC = torch.cat(inputs, dim=-1).to(dt.dtype)
        real = None if context.real is None else context.real[..., None]
        if real is not None:
            xBC, dt = xBC * real, dt * real
        weight = torch.cat([self.conv_x(), self.conv_B(), self.conv_C()])
        bias = torch.cat([self.bias_x(), self.bias_B(), self.bias_C()])
        mixed, columns = short_convolution(xBC, weight, state.columns, segments)
        x, k, q = F.silu(mixed + bias).split([H * self.V, self.K, self.K], dim=-1)
        x, k, q = split_heads(x, H), k[:, None], q[:, None]
        g, dt = (self.rate() * dt).mT, dt.mT[..., None]
        form = recurrent if dt.shape[2] == 1 else partial(CHUNKS, inputs[0].dtype)
        y, S = form(q, k, dt * x, g, S=state.S, segments=segments)
        if context.state is not None:
            state.S, state.columns = S, columns
        return y + self.D()[:, None, None] * x

    def init_state(self, batch: int, length: int) -> RecurrentState:
        """S = 0 and no tokens before, however long the text will be; of the heads that are here."""
        like = self.A_log()
        H, channels = len(like), len(like) * self.V + 2 * self.K
        return empty_state(like, batch, H, self.K, self.V, channels, self.width)

    def flops(self, context: int, causal: bool) -> float:
        """Those of the convolution and of chunks of CHUNK tokens, forward and twice backward."""
        H, K, V, C = self.n_heads, self.K, self.V, min(CHUNK, context)
        chunk = 2 * C * K + 2 * H * C * V  # Q Kᵀ once for all heads; (Q Kᵀ ⊙ D) V
        return 3 * (chunk + 4 * H * K * V + 2 * self.width * (H * V + 2 * K))


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, segments: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o [B, H, T, V] and the last S, token by token: the definition, and how a text is decoded.

    q, k [B, 1, T, K], for all heads; v [B, H, T, V]; g [B, H, T]; S [B, H, K, V]; segments [B, T].
    """
    decay, out = g.exp(), []
    if segments is not None:
        decay = decay * reach_of(segments, q.shape[2], 1, q.device).state[..., 0]
    for t in range(q.shape[2]):
        S = decay[:, :, t, None, None] * S + k[:, :, t, :, None] * v[:, :, t, None]
        out.append((q[:, :, t, None] @ S).squeeze(2))
    return torch.stack(out, dim=2), S


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    S: Tensor,
    segments: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The same as `recurrent`, in matrix products: only S passes from chunk to chunk."""
    T = q.shape[2]
    C = min(chunk, T)
    reach = reach_of(segments, T, C, q.device)
    q, k, v, g = (in_chunks(x, C) for x in (q, k, v, g))
    D, before = decays(g, reach), []
    kept, written = D.whole[..., None, None], k.mT @ (D.leaving[..., None] * v)
    for n in range(v.shape[2]):
        before.append(S)
        S = kept[:, :, n] * S + written[:, :, n]
    o = D.entering[..., None] * (q @ torch.stack(before, dim=2)) + (q @ k.mT * D.within) @ v
    return o.flatten(2, 3)[:, :, :T], S


CHUNKS = Chunks(chunked, "fla.ops.simple_gla", "chunk_simple_gla")
