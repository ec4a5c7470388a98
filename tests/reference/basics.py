"""What the reference oracles share, spelled out with elementary tensor operations.

Conventions: a weight is [out, in] and y = x W^T; activations are [batch, time, features]; head n is
the n-th contiguous block of d_k features; everything is float64, and autograd through these
functions gives the reference gradients.

Two conventions for what the equations leave undefined: Norm(0) = 0, and a query that may attend to
no key has attention output 0. Neither is reached by a position that counts: compare outputs and
losses only at positions that are not padding (give padded positions the target -100).

Every architecture is a decoder (`causal`), an encoder with the same head (`causal=False`), or, with
`seq2seq`, an encoder stack and a decoder stack:
- one embedding E_in (and one set of positions) serves source and target; each stack has L blocks;
- "encoder.{i}.*" are the encoder's layers, "layers.{i}.*" the decoder's, "layers.{i}.cross.*" the
  tensors of a decoder layer's cross-attention, which stands between self-attention and MLP;
- in the encoder every token sees every real token of its source; a decoder's token sees all of
  them, whatever its own place. Keys and values come from the encoder's output, without RoPE, and
  queries of cross-attention have none either;
- source tokens are at positions 0, 1, ... as they stand in the row, padding counted: pad on the
  right, or pass `positions` to `encode`;
- dropout is not a part of the oracles.

Three settings and arguments that every architecture has:
- `n_kv_heads` (H_kv, none: H): W_k and W_v are [H_kv d_k, d], in self- and cross-attention of both
  stacks, and query head n reads key and value head n // (H / H_kv). q and k are still normalised
  (and turned) head by head over d_k;
- `window`: in self-attention query i sees keys j with |i - j| < window only, so a causal token sees
  itself and the window - 1 tokens before it. Cross-attention has no window;
- `documents` [B, T], beside the tokens of a decoder or of an encoder: a token sees only tokens of
  its row with its own number, wherever they stand. Positions keep running over the row. With
  seq2seq it is refused: nothing says which source belongs to which document.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Scale:
    """How a learned scale is stored: the forward uses stored * (init / scale).

    kind: "vector" (a tensor of the full shape), "scalar" (a tensor of shape []), or "fixed" (no
    tensor: the value is `init`, and `scale` is not used).
    """

    kind: str = "vector"
    init: float = 1.0
    scale: float = 1.0


def effective(tensors: Tensors, name: str, scale: Scale) -> Tensor:
    """The value that the equations use for the scale stored under `name`."""
    if scale.kind == "fixed":
        return torch.tensor(scale.init, dtype=torch.float64)
    return tensors[name] * (scale.init / scale.scale)


def scale_shape(scale: Scale, full: tuple[int, ...]) -> tuple[int, ...] | None:
    """The stored tensor's shape, None where nothing is stored."""
    return {"vector": full, "scalar": (), "fixed": None}[scale.kind]


def stored(shapes: dict[str, tuple[int, ...] | None]) -> dict[str, tuple[int, ...]]:
    """The entries that hold a tensor."""
    return {name: shape for name, shape in shapes.items() if shape is not None}


def stack_shapes(
    n_layers: int,
    seq2seq: bool,
    layer: dict[str, tuple[int, ...] | None],
    cross: dict[str, tuple[int, ...] | None],
) -> dict[str, tuple[int, ...] | None]:
    """The layers of a decoder or encoder; with `seq2seq` the decoder's have `cross` as well and
    are followed by the encoder's."""
    table = {}
    for i in range(n_layers):
        own = {**layer, **cross} if seq2seq else layer
        table |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    for i in range(n_layers if seq2seq else 0):
        table |= {f"encoder.{i}.{name}": shape for name, shape in layer.items()}
    return table


def with_value_embeddings(
    table: dict[str, tuple[int, ...] | None],
    n_layers: int,
    seq2seq: bool,
    V: int,
    d_kv: int,
    H_kv: int,
) -> dict[str, tuple[int, ...] | None]:
    """The shapes with E_v and s_v in the last layer of each stack and every second before it."""
    own = {
        f"{stack}.{i}.{name}": shape
        for stack in (("layers", "encoder") if seq2seq else ("layers",))
        for i in range(n_layers - 1, -1, -2)
        for name, shape in {"E_v": (V, d_kv), "s_v": (H_kv,)}.items()
    }
    return table | own


def one_earlier(e: Tensor, positions: Tensor, documents: Tensor | None) -> Tensor:
    """e [B, T, d] of the token before each: 0 at position 0 and where a document begins."""
    earlier = torch.zeros_like(e)
    places = positions.expand(e.shape[:2])
    for b in range(e.shape[0]):
        for t in range(1, e.shape[1]):
            same = documents is None or documents[b, t] == documents[b, t - 1]
            if places[b, t] > 0 and same:
                earlier[b, t] = e[b, t - 1]
    return earlier


def bigram_shapes(rows: int, d: int) -> dict[str, tuple[int, ...]]:
    """The tensors of an embedding of pairs, if it has rows."""
    return {"E_2": (rows, d // 4), "W_2": (d, d // 4), "s_2": (d,)} if rows else {}


def bigram_row(tokens: Tensor, rows: int) -> Tensor:
    """[B, T]: the row of each token and the one before it; 0 for the first of a row of tokens."""
    found = torch.zeros_like(tokens)
    for b, row in enumerate(tokens.tolist()):
        for t in range(1, len(row)):
            found[b, t] = (48271 * (2**18 * row[t - 1] + row[t])) % (2**31 - 1) % rows
    return found


def with_late_keys(k: Tensor, earlier: Tensor, fraction: float) -> Tensor:
    """One head k [B, T, d_k] after RoPE: features from d_rot on are those of the token before.

    earlier [B, T, T]: row t is 1 at t - 1, or 0 where `one_earlier` is.
    """
    d_rot = 2 * int(fraction * k.shape[-1] / 2)
    return torch.cat([k[..., :d_rot], earlier @ k[..., d_rot:]], dim=-1)


def directions(e: Tensor) -> Tensor:
    """e [..., d] with root mean square 1."""
    return e / torch.sqrt((e * e).sum(-1, keepdim=True) / e.shape[-1])


def under(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors named "{prefix}.*", without the prefix."""
    start = f"{prefix}."
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def of_layer(tensors: Tensors, index: int, stack: str = "layers") -> Tensors:
    """The tensors of one layer, without their "{stack}.{index}." prefix."""
    return under(tensors, f"{stack}.{index}")


def require_double(tensors: Tensors) -> None:
    """Refuse tensors that are not float64: an oracle in fp32 would decide nothing."""
    wrong = [name for name, tensor in tensors.items() if tensor.dtype != torch.float64]
    if wrong:
        raise TypeError(f"the oracle works in float64; convert {wrong}")


def linear(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x W^T (+ b)."""
    y = x @ W.transpose(0, 1)
    return y if b is None else y + b


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """Norm(x) = x / |x| along `dim`, with Norm(0) = 0."""
    squared = (x * x).sum(dim, keepdim=True)
    return x / torch.sqrt(torch.where(squared > 0, squared, 1.0))


def head(x: Tensor, n: int, n_heads: int) -> Tensor:
    """Features of head n: x[..., n d_k : (n + 1) d_k]."""
    d_k = x.shape[-1] // n_heads
    return x[..., n * d_k : (n + 1) * d_k]


def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
    """H_kv, how many heads of keys and values there are: it divides H, and None stands for H."""
    H_kv = n_heads if n_kv_heads is None else n_kv_heads
    if H_kv < 1 or n_heads % H_kv != 0:
        raise ValueError(f"{H_kv} heads of keys and values do not divide {n_heads} heads")
    return H_kv


def kv_head_of(n: int, H: int, H_kv: int) -> int:
    """The head of keys and values that query head n reads; H / H_kv neighbours share one."""
    return n // (H // H_kv)


def rope(x: Tensor, positions: Tensor, fraction: float = 1.0) -> Tensor:
    """Rotary positions on one head x [B, T, d_k] at positions [B, T].

    d_rot is the largest even number not above fraction * d_k. Pair (i, i + d_rot/2) turns by the
    angle position * 10000^(-2i/d_rot); features from d_rot on stay.
    """
    d_rot = 2 * int(fraction * x.shape[-1] / 2)
    half = d_rot // 2
    columns = list(x.unbind(-1))
    for i in range(half):
        angle = positions.double() * 10000.0 ** (-2 * i / d_rot)
        first, second = x[..., i], x[..., i + half]
        columns[i] = first * torch.cos(angle) - second * torch.sin(angle)
        columns[i + half] = second * torch.cos(angle) + first * torch.sin(angle)
    return torch.stack(columns, dim=-1)


def positions_of(tokens: Tensor, left_padding: Tensor | None) -> Tensor:
    """[B, T]: the first token that is not padding is at position 0."""
    batch, length = tokens.shape
    positions = torch.arange(length).expand(batch, length)
    if left_padding is None:
        return positions
    return torch.clamp(positions - left_padding[:, None], min=0)


def visible(
    tokens: Tensor,
    causal: bool,
    mask: Tensor | None,
    left_padding: Tensor | None,
    window: int | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    """[B, T, T], True where query i may attend to key j.

    causal: j <= i only. mask: [T, T], [B, T, T] or [B, 1, T], True = may attend. left_padding: [B],
    how many leading keys of each row nobody attends to. window: |i - j| < window only. documents:
    [B, T], equal numbers only. What each of them forbids is forbidden.
    """
    batch, length = tokens.shape
    see = torch.ones(batch, length, length, dtype=torch.bool)
    for i in range(length):
        if causal:
            see[:, i, i + 1 :] = False
        if window is not None:
            forbid_outside_window(see, i, window)
    if documents is not None:
        forbid_other_documents(see, documents)
    if mask is not None:
        see = see & mask
    if left_padding is not None:
        for b in range(batch):
            see[b, :, : int(left_padding[b])] = False
    return see


def forbid_outside_window(see: Tensor, i: int, window: int) -> None:
    """Hide from query i the keys up to i - window and those from i + window on."""
    if window < 1:
        raise ValueError("a window of less than 1 would hide a token from itself")
    for j in range(see.shape[2]):
        if j <= i - window or j >= i + window:
            see[:, i, j] = False


def forbid_other_documents(see: Tensor, documents: Tensor) -> None:
    """Hide from every query the keys with another document number."""
    if documents.shape != see.shape[:2]:
        raise ValueError(f"documents are {list(documents.shape)}, tokens {list(see.shape[:2])}")
    for b, numbers in enumerate(documents.tolist()):
        for i, own in enumerate(numbers):
            for j, other in enumerate(numbers):
                if other != own:
                    see[b, i, j] = False


def visible_source(source: Tensor, source_mask: Tensor | None, window: int | None = None) -> Tensor:
    """[B, S, S] for the encoder: everybody sees the tokens [B, S] where source_mask is True."""
    mask = None if source_mask is None else source_mask[:, None, :]
    return visible(source, causal=False, mask=mask, left_padding=None, window=window)


def visible_memory(tokens: Tensor, memory: Tensor, source_mask: Tensor | None) -> Tensor:
    """[B, T, S] for cross-attention: every token sees the memory where source_mask is True."""
    batch, length = tokens.shape
    see = torch.ones(batch, length, memory.shape[1], dtype=torch.bool)
    return see if source_mask is None else see & source_mask[:, None, :]


def require_memory(seq2seq: bool, memory: Tensor | None, documents: Tensor | None = None) -> None:
    """Refuse an encoder-decoder without a memory or with documents, and a memory that nothing
    would read."""
    if seq2seq != (memory is not None):
        raise ValueError("memory goes with seq2seq, and only with it")
    if seq2seq and documents is not None:
        raise ValueError("documents do not go with seq2seq")


def softmax(scores: Tensor, see: Tensor) -> Tensor:
    """exp(s_j) / sum over visible j of exp(s_j); 0 where not visible."""
    largest = torch.where(see, scores, -math.inf).amax(-1, keepdim=True).detach()
    shifted = scores - torch.where(see.any(-1, keepdim=True), largest, 0.0)
    weights = torch.where(see, torch.exp(torch.where(see, shifted, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def attend(q: Tensor, k: Tensor, v: Tensor, factor: Tensor | float, see: Tensor) -> Tensor:
    """softmax(factor * q k^T) v for one head: q [B, T, d_k], k and v [B, S, d_k]."""
    return softmax(factor * (q @ k.transpose(1, 2)), see) @ v


def silu(x: Tensor) -> Tensor:
    """x sigma(x)."""
    return x / (1.0 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), with the exact normal distribution function (no tanh approximation)."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return torch.where(x > 0, x, 0.0)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return relu(x) * relu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "relu": relu,
    "relu2": relu2,
}


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean over the targets that are not -100 of (1 - e) nll + e u, e = label_smoothing:
    nll = -log softmax(logits)[target], u = the mean of -log softmax(logits) over the vocabulary.
    """
    total = torch.zeros((), dtype=torch.float64)
    counted = targets != IGNORED
    for b, t in counted.nonzero().tolist():
        z = logits[b, t]
        largest = z.max().detach()
        log_sum = largest + torch.log(torch.exp(z - largest).sum())
        nll, uniform = log_sum - z[targets[b, t]], log_sum - z.sum() / len(z)
        total = total + (1 - label_smoothing) * nll + label_smoothing * uniform
    return total / int(counted.sum())


def random_tensors(
    shapes: dict[str, tuple[int, ...]], seed: int = 0, around_one: Sequence[str] = ()
) -> Tensors:
    """Random float64 leaves that require gradients, in the order of `shapes`.

    Matrices are N(0, 1/in). Everything else is .5 N(0, 1), plus 1 where the last part of its name
    is in `around_one`.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        is_matrix = name.split(".")[-1][0] in "WEP"
        value = noise / math.sqrt(shape[-1]) if is_matrix else 0.5 * noise
        value = value + 1.0 if name.split(".")[-1] in around_one else value
        tensors[name] = value.requires_grad_()
    return tensors
