"""Logits of the next token, and the token that is drawn from them.

Logits come eagerly with a growing cache, or from one compiled graph of fixed shapes. Compiled, keys
and values lie in buffers of a fixed length, the position is a tensor, and what is not written yet
is masked: no shape changes from one token to the next, so nothing is compiled again. Lengths are
rounded up to powers of two, so that texts of other lengths share a graph. `sample` then draws with
repetition penalty, temperature, top-k, top-p and min-p.

Shapes: B rows, T tokens of the prompts, L length of the buffers, V vocabulary entries.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.models.context import Cache, LayerState, SelfContext
from unitsphere.models.trunk import Transformer
from unitsphere.ops.attention import MaskRule
from unitsphere.ops.rope import rope_table

SHORTEST = 64
"""The shortest buffers of keys and values, in tokens."""
PIECE = 2048
"""Tokens of a prompt that are read at once where no layer has attention. The recurrent states
have a constant size, so a long prompt needs no more memory than this many tokens of h."""
GRAPHS = 64
"""Pairs of batch and length that a process compiles before torch refuses to continue."""

MOST_TOKENS = 1 << 20
"""Most tokens that are written: memory for all of them is taken at once."""

COLDEST = 1e-4
"""Below this temperature the likeliest token is taken: logits would overflow."""
Next = Callable[[Tensor], Tensor]
"""Tokens [B, T], the prompts, and then [B, 1] what was drawn -> logits [B, V] of what follows."""


def eager(model: Transformer, batch: int, length: int, padding_B: Tensor | None) -> Next:
    """With a cache of `length` tokens per row; `padding_B` counts each row's left padding."""
    cache = model.new_cache(batch, length)

    def following(tokens_BT: Tensor) -> Tensor:
        return last_logits(model, tokens_BT, cache, padding_B)

    return following


def compiled(model: Transformer, batch: int, length: int, padding_B: Tensor | None) -> Next:
    """The prompts eagerly, each further token by a compiled graph."""
    length = rounded(length)
    cache = model.new_cache(batch, length)
    if padding_B is None:
        padding_B = torch.zeros(batch, dtype=torch.int64, device=model.device)
    step = compiled_step()

    def following(tokens_BT: Tensor) -> Tensor:
        if cache.length == 0:
            return last_logits(model, tokens_BT, cache, padding_B)
        at = torch.tensor(cache.length, device=model.device)
        before, cache.last = cache.last, tokens_BT
        cache.length += 1
        return step(model, tokens_BT, before, at, length, padding_B, cache.layers)

    return following


def rounded(length: int) -> int:
    """The next power of two."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def last_logits(
    model: Transformer, tokens_BT: Tensor, cache: Cache, padding_B: Tensor | None
) -> Tensor:
    """Logits [B, V] after only the last token."""
    pieces = tokens_BT.split(tokens_BT.shape[1] if model.attends else PIECE, dim=1)
    for piece in pieces[:-1]:
        model.features(piece, cache=cache, left_padding=padding_B)
    return model.logits(model.features(pieces[-1], cache=cache, left_padding=padding_B)[:, -1])


def one_token(
    model: Transformer,
    tokens_B1: Tensor,
    before_B1: Tensor,
    at: Tensor,
    length: int,
    padding_B: Tensor,
    layers: list[LayerState],
) -> Tensor:
    """Logits [B, V] after one more token per row, number `at` [] with the padding.

    before_B1: the tokens before these.
    The states of the layers have room for `length` tokens.
    """
    keys = torch.arange(length, device=at.device)
    see = MaskRule(causal=True, window=model.config.window).function()(at, at, at, keys)
    see = see & (keys >= padding_B[:, None, None, None])
    positions = (at[None] - padding_B[:, None]).clamp(min=0)
    wide = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    cos, sin = rope_table(positions, model.d_rot, model.rope_base, wide)
    table = cos[:, None], sin[:, None]
    real = at >= padding_B[:, None]
    context = SelfContext(positions, table, see, True, at, real, tokens=tokens_B1)
    h = model.start(tokens_B1, positions, before_B1)
    for block, layer in zip(model.blocks, layers, strict=True):
        h = block(h, context.of(layer))
    return model.logits(model.norm(h)[:, -1])


@functools.cache
def compiled_step() -> Callable[..., Tensor]:
    """`one_token`, compiled for each batch and length at its first call."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(one_token, fullgraph=True, dynamic=False)


def check_length(max_tokens: int) -> None:
    """Raise a `UserError` for a number of tokens that cannot be written."""
    if max_tokens < 1:
        raise UserError(f"max_tokens must be 1 or more, not {max_tokens}")
    if max_tokens > MOST_TOKENS:
        raise UserError(f"max_tokens must be at most {MOST_TOKENS:,}, not {max_tokens:,}")


def check_sampling(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> None:
    """Raise a `UserError` for settings out of range."""
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature must be 0 (greedy) or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be 1 or more, not {top_k}; leave it out to keep every token")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p}")
    if min_p is not None and not 0 <= min_p <= 1:
        raise UserError(f"min_p must be from 0 to 1, not {min_p}")
    if not 0 < repetition_penalty < float("inf"):
        raise UserError(
            f"repetition_penalty must be above 0, not {repetition_penalty}; 1 changes nothing"
        )


def penalize(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Logits whose seen tokens are made less likely by `penalty` above 1.

    Positive ones are divided by it, negative ones multiplied (CTRL, Keskar et al. 2019,
    arXiv:1909.05858, in the form for logits of both signs). seen: bool [B, V].
    """
    if penalty == 1:
        return logits_BV
    less_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, less_BV, logits_BV)


def kept(
    probabilities_BV: Tensor, top_k: int | None, top_p: float | None, min_p: float | None = None
) -> Tensor:
    """Which tokens of a descending distribution stay: bool [B, V], at least the first of a row.

    top_k keeps the k likeliest. top_p then keeps the shortest prefix that holds at least that
    share of what top_k left (nucleus sampling, Holtzman et al. 2020, arXiv:1904.09751). min_p
    keeps those at least that share as likely as the likeliest (Nguyen et al. 2024,
    arXiv:2407.01082).
    """
    keep_BV = torch.ones_like(probabilities_BV, dtype=torch.bool)
    if top_k is not None:
        keep_BV[:, top_k:] = False
    if top_p is not None:
        left_BV = probabilities_BV * keep_BV
        before_BV = left_BV.cumsum(-1) - left_BV
        keep_BV &= before_BV < top_p * left_BV.sum(-1, keepdim=True)
        keep_BV[:, 0] = True
    if min_p is not None:
        keep_BV &= probabilities_BV >= min_p * probabilities_BV[:, :1]
    return keep_BV


def sample(
    logits_BV: Tensor,
    uniform_B: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """The next token of each row, int64 [B].

    `uniform_B` holds a number in [0, 1) for each row: the token is where the row's cumulative
    distribution passes it, so a row's token depends only on that row. Temperatures below COLDEST
    are greedy, as 0 is.
    """
    if temperature < COLDEST:
        return logits_BV.argmax(-1)
    sorted_BV, order_BV = logits_BV.float().sort(dim=-1, descending=True, stable=True)
    # Subtracting the largest first keeps a small temperature from overflowing.
    probabilities_BV = ((sorted_BV - sorted_BV[:, :1]) / temperature).softmax(-1)
    keep_BV = kept(probabilities_BV, top_k, top_p, min_p)
    cumulative_BV = (probabilities_BV * keep_BV).cumsum(-1)
    threshold_B1 = uniform_B[:, None].to(cumulative_BV) * cumulative_BV[:, -1:]
    rank_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    # Rounding can lift the threshold to the total; the last kept token then is the answer.
    rank_B1 = rank_B1.minimum(keep_BV.sum(-1, keepdim=True) - 1)
    return order_BV.gather(-1, rank_B1).squeeze(-1)
