"""Gated linear attention: a state whose rows forget at rates of their own (arXiv 2312.06635).

| step | formula |
|---|---|
| inputs | q, k, v = W_q x, W_k x, W_v x; q ÷ √K |
| decay | g = ln σ(W_up W_low x + b)/16 [H, K], W_low [16, d] |
| recurrence | S ← diag(e^g) S + k ⊗ v; o = Sᵀq |
| output | W_o(RMSNorm(o) ⊙ SiLU(W_z x)), one gain [V] for all heads |

In chunks of C tokens, G the sums of g from the chunk's start, Q⁺ = e^G Q, K⁻ = e^−G K:

    O = Q⁺S + tril(Q⁺ K⁻ᵀ) V;  S ← diag(e^(G_C)) S + (e^(G_C − G) K)ᵀ V

e^G and e^−G are taken from the chunk's middle and chunks are short, so neither leaves fp32's range
before one token forgets to less than e^−11, which needs a W_up W_low x + b below −170.

Where rows of the matrices and h are unit vectors (this project's form), a learned number s, √d at
the start, multiplies W_z x, and another, 0.02·d, W_low x, as in Gated DeltaNet; q, k and v need
none, because Norm(o) per head, without a gain, takes the place of RMSNorm. W_up and b are free.

K is d/(2H) and V is d/H unless `model.recurrence` says otherwise. There is no short convolution.
"""

import math
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.kernels.recurrence import Chunks
from unitsphere.models.config import ModelConfig, head_size
from unitsphere.models.context import SelfContext
from unitsphere.models.mixers.recurrent import (
    Free,
    RecurrentMixer,
    RecurrentState,
    empty_state,
    in_chunks,
    input_scale,
    ones_,
    reach_of,
    segments_of,
    uniform_,
)
from unitsphere.models.parts import Matrices
from unitsphere.ops.attention import merge_heads, split_heads
from unitsphere.ops.norm import cast, rms_norm, unit_norm

CHUNK = 16
EPS = 1e-5
LOW = 16
"""Rows of W_low."""
SLOWNESS = 16
"""What the logarithm of the decay is divided by."""


class GatedLinearAttention(RecurrentMixer):
    """The mixer of the table above."""

    tp_plan: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("W_q", "W_k", "W_v", "W_z"), "columns"),
        "s_z": "units",
        **dict.fromkeys(("W_up", "b"), "channels"),
        **dict.fromkeys(("W_low", "gain"), "shared"),
        "W_o": "rows",
    }

    def __init__(self, config: ModelConfig, W: Matrices) -> None:
        super().__init__()
        sizes, d = config.recurrence, config.d_model
        H = self.n_heads = sizes.n_heads or config.n_heads
        self.K = sizes.d_key or head_size(d, config.n_heads) // 2
        self.V = sizes.d_value or head_size(d, config.n_heads)
        if self.K < 1:
            raise UserError("gla: a head of 1 has no half for its keys: give recurrence.d_key")
        self.W_q, self.W_k = W.from_h(H * self.K), W.from_h(H * self.K)
        self.W_v, self.W_z = W.from_h(H * self.V), W.from_h(H * self.V)
        self.W_low, self.W_o = W.from_h(LOW), W.to_h(H * self.V)
        start = partial(uniform_, inputs=LOW)
        self.W_up, self.b = Free((H * self.K, LOW), start), Free((H * self.K,), start)
        self.gain = None if W.unit else Free((self.V,), ones_, "gain")
        self.s_z, self.s_low = input_scale(W, math.sqrt(d), d), input_scale(W, 0.02 * d, d)

    def forward(self, x: Tensor, context: SelfContext) -> Tensor:
        """[batch, time, d] -> [batch, time, d]."""
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        g, z = self.log_decay(x), self.W_z(x, self.s_z())
        with torch.autocast(x.device.type, enabled=False):
            heads = self.heads(q, k, v, g, context)
        return self.W_o(cast(merge_heads(heads), z.dtype) * F.silu(z))

    def log_decay(self, x: Tensor) -> Tensor:
        """g [B, T, H·K], in fp32 or wider."""
        low = self.W_low(x, self.s_low())
        wide = torch.promote_types(low.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            up = F.linear(low.to(wide), self.W_up().to(wide), self.b().to(wide))
        return F.logsigmoid(up) / SLOWNESS

    def heads(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, context: SelfContext) -> Tensor:
        """o after its norm, [batch, H, time, V], in fp32 or wider; a state is updated.

        Padding writes nothing: its k is 0.
        """
        H = q.shape[-1] // self.K
        state = context.state or self.init_state(len(q), 0)
        narrow = q.dtype
        q, k, v = (y.to(g.dtype) for y in (q, k, v))
        if context.real is not None:
            k = k * context.real[..., None]
        q, k, v, g = (split_heads(y, H) for y in (q / math.sqrt(self.K), k, v, g))
        form = recurrent if q.shape[2] == 1 else partial(CHUNKS, narrow)
        o, S = form(q, k, v, g, S=state.S, segments=segments_of(context.documents))
        if context.state is not None:
            state.S = S
        return unit_norm(o) if self.gain is None else rms_norm(o, self.gain(), EPS)

    def init_state(self, batch: int, length: int) -> RecurrentState:
        """S = 0, however long the text will be; of the heads that are here."""
        like = self.b()
        return empty_state(like, batch, len(like) // self.K, self.K, self.V)

    def flops(self, context: int, causal: bool) -> float:
        """Those of W_up and of chunks of CHUNK tokens, forward and twice backward."""
        K, V, C = self.K, self.V, min(CHUNK, context)
        return 3 * self.n_heads * (2 * C * (K + V) + 4 * K * V + 2 * LOW * K)


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, segments: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o [B, H, T, V] and the last S, token by token: the definition, and how a text is decoded.

    q, k, g [B, H, T, K]; v [B, H, T, V]; S [B, H, K, V]; segments [B, T].
    """
    decay, out = g.exp(), []
    if segments is not None:
        decay = decay * reach_of(segments, q.shape[2], 1, q.device).state
    for t in range(q.shape[2]):
        S = decay[:, :, t, :, None] * S + k[:, :, t, :, None] * v[:, :, t, None]
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
    G, before = g.cumsum(-2), []
    middle, end = G[..., C // 2, None, :], G[..., -1, None, :]
    pairs = ((q * (G - middle).exp()) @ (k * (middle - G).exp()).mT).masked_fill(~reach.tokens, 0)
    entering = G.exp() * reach.state[..., None]
    leaving = (end - G).exp() * reach.tokens[..., -1, :, None]
    kept, written = entering[..., -1, :, None], (leaving * k).mT @ v
    for n in range(q.shape[2]):
        before.append(S)
        S = kept[:, :, n] * S + written[:, :, n]
    o = (entering * q) @ torch.stack(before, dim=2) + pairs @ v
    return o.flatten(2, 3)[:, :, :T], S


CHUNKS = Chunks(chunked, "fla.ops.gla", "chunk_gla")
