"""What recurrent mixers share: sizes, state, short convolution, and decay within chunks of a text.

Shapes: B rows, T tokens, H heads, K and V the widths of a key and a value, N chunks of C tokens.
The equations are in the file of each mixer, in two forms: the recurrence, token by token, which
defines it, and chunks, which training uses: within a chunk all is matrix products, and only the
state passes from chunk to chunk. A state [B, H, K, V] is kept and computed in fp32 or wider.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitsphere.models.constraint import Declaration, Role
from unitsphere.models.parts import Matrices, Scale, ScaleConfig


@dataclass
class RecurrentState:
    """What a recurrent mixer keeps of the tokens before: its size does not depend on their number.

    S [B, H, K, V]; `columns` [B, width − 1, channels] are the short convolution's last inputs.
    """

    S: Tensor
    columns: Tensor


class Free(nn.Module):
    """A parameter that is neither a matrix nor constrained, drawn by `start`."""

    def __init__(
        self, shape: tuple[int, ...], start: Callable[..., Tensor], role: Role = "bias"
    ) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.empty(shape))
        self.start = start
        self.role: Role = role

    def forward(self) -> Tensor:
        """The parameter."""
        return self.value

    def reset(self, generator: torch.Generator) -> None:
        """Draw it."""
        with torch.no_grad():
            self.start(self.value, generator)

    def declare(self) -> dict[str, Declaration]:
        """Off the sphere and without weight decay, like a bias."""
        return {"value": Declaration(self.role)}


def input_scale(W: Matrices, init: float, d: int) -> Scale:
    """A learned number that multiplies a product of unit vectors; 1 where they are not unit."""
    form = ScaleConfig("scalar", init, 1.0) if W.unit else ScaleConfig("fixed")
    return Scale(form, (), d)


def softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x), not by torch's own, of whose gradient AOTAutograd mistakes the layout."""
    return torch.logaddexp(x, x.new_zeros(()))


def ones_(x: Tensor, generator: torch.Generator) -> Tensor:
    """1."""
    return nn.init.ones_(x)


def slow_log_rate_(x: Tensor, generator: torch.Generator) -> Tensor:
    """ln u of u uniform in [0.01, 16): the logarithm of a rate of decay, Gated DeltaNet's."""
    return x.uniform_(0.01, 16, generator=generator).log_()


def log_rate_(x: Tensor, generator: torch.Generator) -> Tensor:
    """ln u of u uniform in [1, 16): Mamba-2's."""
    return x.uniform_(1, 16, generator=generator).log_()


def time_step_(x: Tensor, generator: torch.Generator) -> Tensor:
    """softplus⁻¹(dt), ln dt uniform between ln 0.001 and ln 0.1, as in Mamba."""
    dt = x.uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
    return x.copy_(dt + torch.log(-torch.expm1(-dt)))


def uniform_(x: Tensor, generator: torch.Generator, inputs: int) -> Tensor:
    """Uniform within ±1/√inputs: torch's start of a linear map, or of a depthwise convolution."""
    limit = 1 / math.sqrt(inputs)
    return x.uniform_(-limit, limit, generator=generator)


def short_convolution(
    x: Tensor, weight: Tensor, before: Tensor, segments: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y_t = Σ_j w_j ⊙ x_{t−j}, j = 0 … width − 1, and the last inputs, for the tokens to come.

    x [B, T, channels] after `before` [B, width − 1, channels]; weight [channels, width], its last
    column for x_t. Inputs of another segment count as 0.
    """
    T, width = x.shape[1], weight.shape[1]
    inputs = torch.cat([before, x], dim=1)
    y = x * weight[:, -1]
    for j in range(1, width):
        past = inputs[:, width - 1 - j : width - 1 - j + T]
        if segments is not None:
            same = segments[:, j:] == segments[:, :-j]
            past = past * F.pad(same, (min(j, T), 0))[..., None]
        y = y + past * weight[:, -1 - j]
    return y, inputs[:, inputs.shape[1] - width + 1 :]


def segments_of(documents: Tensor | None) -> Tensor | None:
    """Which run of equal document numbers each token is in, [B, T]; None where there is one."""
    if documents is None:
        return None
    change = documents[:, 1:] != documents[:, :-1]
    return F.pad(change.cumsum(-1), (1, 0))


class Reach(NamedTuple):
    """Which tokens of a chunk see what, bool; a token sees its own segment only."""

    tokens: Tensor
    """[B or 1, 1, N, C, C]: token i sees token j, which is i or before it"""
    state: Tensor
    """[B or 1, 1, N, C]: token i sees the state from before the chunk"""


def reach_of(segments: Tensor | None, T: int, C: int, device: torch.device) -> Reach:
    """Of T tokens in chunks of C; what fills the last chunk belongs to the last segment."""
    if segments is None:
        segments = torch.zeros(1, T, dtype=torch.int64, device=device)
    fill = segments[:, -1:].expand(-1, -T % C)
    chunks = torch.cat([segments, fill], dim=1).unflatten(1, (-1, C))[:, None]
    before = F.pad(chunks[:, :, :-1, -1], (1, 0))  # the first segment is number 0
    tokens = (chunks[..., :, None] == chunks[..., None, :]).tril()
    return Reach(tokens, chunks == before[..., None])


def in_chunks(x: Tensor, C: int) -> Tensor:
    """[B, H, T, ...] -> [B, H, N, C, ...]; zeros fill the last chunk, which change no state."""
    spare = -x.shape[2] % C
    padded = F.pad(x, (0, 0) * (x.dim() - 3) + (0, spare)) if spare else x
    return padded.unflatten(2, (-1, C))


class Decays(NamedTuple):
    """How much is left, in [0, 1], for a log decay g of each head and token."""

    within: Tensor
    """D_ij = e^(g_(j+1) + … + g_i), [B, H, N, C, C]: at token i, of what token j has written"""
    entering: Tensor
    """e^(G_i), G the sum of g from the chunk's start, [B, H, N, C]: of the state before it"""

    @property
    def leaving(self) -> Tensor:
        """[B, H, N, C]: at the chunk's end, of what token j has written."""
        return self.within[..., -1, :]

    @property
    def whole(self) -> Tensor:
        """[B, H, N]: at the chunk's end, of the state before it."""
        return self.entering[..., -1]


def decays(g: Tensor, reach: Reach) -> Decays:
    """Of g [B, H, N, C].

    The exponents of D are sums of what lies between, not differences of sums from the start: these
    would lose digits where much has decayed before.
    """
    C = g.shape[-1]
    after = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)
    between = g[..., :, None].masked_fill(~after, 0).cumsum(-2)
    within = between.masked_fill(~reach.tokens, -math.inf).exp()
    return Decays(within, g.cumsum(-1).exp() * reach.state)


class RecurrentMixer(nn.Module, ABC):
    """What the recurrent mixers share; each adds its matrices and `forward`.

    Its parameters say which heads are here: under tensor parallel a rank has some of them.
    """

    bidirectional: ClassVar[bool] = False
    n_heads: int
    """of all ranks"""

    @abstractmethod
    def log_decay(self, x: Tensor) -> Tensor:
        """g of each head, or of each row of its state, for x [B, T, d]: [B, T, n]."""

    @abstractmethod
    def init_state(self, batch: int, length: int) -> RecurrentState:
        """The state of `batch` rows without tokens, however long the text will be."""

    def reorder(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """The state of these rows."""
        return RecurrentState(state.S[rows], state.columns[rows])


def empty_state(
    like: Tensor, batch: int, H: int, K: int, V: int, channels: int = 0, width: int = 1
) -> RecurrentState:
    """Of `batch` rows without tokens, where the parameter `like` is, in fp32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    S = torch.zeros(batch, H, K, V, dtype=dtype, device=like.device)
    return RecurrentState(S, S.new_zeros(batch, width - 1, channels))
