"""One token from one row of logits: repetition penalty, temperature, top-k, top-p, min-p.

Shapes: B rows, V vocabulary entries.
"""

import torch
from torch import Tensor

from unitsphere.errors import UserError


def check_sampling(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> None:
    """Raise a `UserError` for settings that no distribution can follow."""
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

    `uniform_B` holds a number in [0, 1) a row: the token is where the row's cumulative
    distribution passes it, so a row's token depends on that row alone. Temperature 0 is greedy.
    """
    if temperature == 0:
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
