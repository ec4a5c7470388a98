"""Experts: an MLP in several copies, of which each token uses a few (mixture of experts).

`model.n_experts = 8`, `model.top_k = 2` put them in the place of every layer's MLP, in any
architecture; an expert is that architecture's MLP, of width `model.d_ff`.

| step | formula | method |
|---|---|---|
| score | p = σ(s_r·W_r x) [E], in fp32 | `Router` |
| choose | C = the k experts with the largest p + b | |
| gate | g_i = √(p_i/Σ_C p_j), i in C | |
| output | y = √½·Σ_C g_i·MLP_i(x) + √½·MLP_shared(x), or without shared ones Σ_C g_i·MLP_i(x) | \
`Experts` |
| balance | b ← b + c·sign(mean n − n), then minus its mean; n_i tokens of expert i in a step | \
`balance_` |

Where the architecture constrains its matrices, the rows of W_r are unit vectors (anGPT: at most),
and s_r is a learned scalar from √d: p depends on the cosines of x and the rows. Elsewhere s_r = 1.
The gate is arXiv 2603.28743's (its code): Σ g² = 1, so the experts' sum keeps the scale of one. The
balance is arXiv 2408.15664's: b decides who is chosen, never how much they count, and it has no
gradient. No token is dropped, whatever the load.

The matrices of the experts are stacks [E, d_out, d_in], of which each expert's is constrained, and
made orthogonal by Muon, on its own. Scales of hidden units (s_u, s_ν, a layer norm) are one for all
routed experts, as in the published hybrid nGPT (arXiv 2605.06067, its code).
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.models.config import ModelConfig, mlp_size
from unitsphere.models.parts import Linear, Matrices, Scale, ScaleConfig
from unitsphere.ops.linear import folds, grouped_linear, scale_rows, unless_one

HALF = math.sqrt(0.5)

MLP = Callable[[Any, Matrices], nn.Module]
"""An architecture's MLP: of a config and the makers of its matrices."""


def build_mlp(config: Any, W: Matrices, mlp: MLP) -> nn.Module:
    """The MLP of a layer: the architecture's own `mlp`, or experts of that kind."""
    return Experts(config, W, mlp) if config.n_experts else mlp(config, W)


class Groups(NamedTuple):
    """Rows sorted by expert: the expert of each, [n], and the row after each one's last, [E]."""

    experts: Tensor
    ends: Tensor


class Pass(threading.local):
    """What `Experts` says to its matrices in a forward pass; each thread has a pass of its own."""

    groups: Groups


CURRENT_PASS = Pass()


class ExpertLinear(Linear):
    """A `Linear` for each expert, their matrices in one stack W [E, d_out, d_in].

    `CURRENT_PASS.groups` says whose rows it is given; `Experts` sets it before each pass.
    """

    def __init__(self, one: Linear, n_experts: int) -> None:
        """Stacks `n_experts` like `one`, with its start, and its constraint on each."""
        bound = None if one.bound is None else replace(one.bound, dim=one.bound.dim + 1)
        biased = one.bias is not None
        super().__init__(*one.weight.mT.shape, std=one.std, bound=bound, bias=biased)
        self.weight = nn.Parameter(torch.empty(n_experts, *one.weight.shape))
        if self.bias is not None:
            self.bias = nn.Parameter(torch.empty(n_experts, *self.bias.shape))

    def forward(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """[n, d_in], sorted by expert -> [n, d_out], times `scale` [d_out] if there is one."""
        weight, scale = self.matrix(), unless_one(scale)
        if scale is not None and folds(x):
            weight, scale = scale_rows(weight, scale), None
        y = grouped_linear(x, weight, CURRENT_PASS.groups.ends)
        if self.bias is not None:
            y = y + self.bias[CURRENT_PASS.groups.experts].to(y.dtype)
        return y if scale is None else y * scale


class Router(nn.Module):
    """Chooses a token's experts and their gates; `expert_bias` is b of the table above."""

    expert_bias: Tensor

    def __init__(self, config: ModelConfig, W: Matrices) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.W_r = W.from_h(config.n_experts)
        self.W_r.role = "router"
        learned = ScaleConfig("scalar", init=math.sqrt(config.d_model))
        self.s_r = Scale(learned if W.unit else ScaleConfig("fixed"), (), config.d_model)
        self.register_buffer("expert_bias", torch.empty(config.n_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, d] -> the experts chosen, int64 [n, k], and their gates, [n, k] in fp32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            # In fp32 or wider, unless the weights were cast, as by `model.bfloat16()`.
            logits = self.W_r(wide.to(self.W_r.weight.dtype), self.s_r()).to(wide.dtype)
        chosen = (logits.sigmoid() + self.expert_bias).topk(self.top_k).indices
        log_p = F.logsigmoid(logits.gather(-1, chosen))  # finite where p is 0, below -104 in fp32
        return chosen, (log_p.log_softmax(-1) / 2).exp()

    def reset(self, generator: torch.Generator) -> None:
        """b starts at 0."""
        self.expert_bias.zero_()


class Experts(nn.Module):
    """The table above, of one layer.

    `tokens_per_expert` counts what training gave to each expert since the last `balance_`; blocks
    that are computed again for their gradients count twice, all of them, which changes no sign.
    """

    tokens_per_expert: Tensor

    def __init__(self, config: ModelConfig, W: Matrices, mlp: MLP) -> None:
        super().__init__()
        check_sizes(config)
        self.router, self.rate = Router(config, W), config.balance
        from_h, to_h = (stacked(make, config.n_experts) for make in (W.from_h, W.to_h))
        self.routed = mlp(config, W._replace(from_h=from_h, to_h=to_h))
        self.matrices = [m for m in self.routed.modules() if isinstance(m, ExpertLinear)]
        self.shared = None
        if config.shared_experts:
            width = config.shared_experts * mlp_size(config.d_ff, config.d_model)
            self.shared = mlp(replace(config, d_ff=width), W)
        counts = torch.empty(config.n_experts, dtype=torch.int64)
        self.register_buffer("tokens_per_expert", counts, persistent=False)
        self.register_load_state_dict_post_hook(count_again_)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        rows = x.flatten(0, -2)
        chosen, gates = self.router(rows)
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(len(self.tokens_per_expert), device=x.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        if self.training and torch.is_grad_enabled():
            self.tokens_per_expert += ends.diff(prepend=ends.new_zeros(1))
        CURRENT_PASS.groups = Groups(experts, ends)
        by_expert = self.routed(rows[order // self.router.top_k])
        by_token = by_expert[order.argsort()].unflatten(0, chosen.shape)
        y = (by_token * gates.to(by_token.dtype)[..., None]).sum(-2).view_as(x)
        return y if self.shared is None else HALF * (y + self.shared(x))

    def reset(self, generator: torch.Generator) -> None:
        """Nothing is counted yet."""
        self.tokens_per_expert.zero_()

    @torch.no_grad()
    def balance_(self, sum_: Callable[[Tensor], Tensor], left_out: Tensor | None = None) -> None:
        """Moves b by what was counted, unless the step is `left_out`, and counts from 0 again."""
        n = sum_(self.tokens_per_expert.clone()).to(torch.float64)
        b = self.router.expert_bias
        before = b.clone()
        b.add_((n.mean() - n).sign().to(b.dtype), alpha=self.rate).sub_(b.mean())
        if left_out is not None:
            b.copy_(torch.where(left_out, before, b))
        self.tokens_per_expert.zero_()

    @property
    def idle(self) -> int:
        """How many of its parameters a token does not use."""
        return self._unused(p for m in self.matrices for p in m.parameters())

    @property
    def idle_weights(self) -> int:
        """The same of its matrices, without their biases."""
        return self._unused(m.weight for m in self.matrices)

    def _unused(self, stacks: Iterable[Tensor]) -> int:
        E, k = len(self.tokens_per_expert), self.router.top_k
        return sum(stack.numel() for stack in stacks) // E * (E - k)


def count_again_(experts: Experts, odd_keys: object) -> None:
    """Count from 0 beside the weights that were loaded: with `assign` these may have another device
    than the counts, which no state_dict has."""
    device = experts.router.expert_bias.device
    experts.tokens_per_expert = torch.zeros_like(experts.tokens_per_expert, device=device)


def stacked(make: Callable[[int], Linear], n_experts: int) -> Callable[[int], Linear]:
    """A maker of stacks from one of matrices."""
    return lambda size: ExpertLinear(make(size), n_experts)


def check_sizes(config: ModelConfig) -> None:
    """Raise UserError for numbers of experts that cannot be."""
    if config.n_experts < 2:
        raise UserError(f"model.n_experts must be 0 or at least 2: {config.n_experts}")
    if config.top_k > config.n_experts:
        raise UserError(
            f"model.top_k {config.top_k} is above model.n_experts {config.n_experts}: "
            "a token uses each expert once at most"
        )
    if config.top_k < 2:
        raise UserError(
            f"model.top_k must be from 2 to model.n_experts {config.n_experts}: {config.top_k}; "
            "the gate of a single expert is always 1, so its router would not learn"
        )
    if config.shared_experts < 0:
        raise UserError(f"model.shared_experts must not be negative: {config.shared_experts}")
    if not 0 <= config.balance < math.inf:
        raise UserError(f"model.balance must be a number from 0 on: {config.balance}")


def experts_of(model: nn.Module) -> Iterator[Experts]:
    """The experts of every layer that has some."""
    return (module for module in model.modules() if isinstance(module, Experts))


def start_counting_(model: nn.Module) -> None:
    """Forget the tokens counted: a step that an exception ended has left some."""
    for experts in experts_of(model):
        experts.tokens_per_expert.zero_()


def balance_(
    model: nn.Module,
    sum_: Callable[[Tensor], Tensor] = lambda count: count,
    left_out: Tensor | None = None,
) -> None:
    """Move each layer's bias toward even loads, by the tokens since the last call.

    Call it after every step of the optimizer; `sum_` adds up counts over processes, and a step that
    is `left_out` (a bool on the device) moves nothing. A model without experts stays as it is.
    """
    for experts in experts_of(model):
        experts.balance_(sum_, left_out)


def active_parameters(model: nn.Module) -> int:
    """The parameters that a token uses: all but those of the experts that it is not given to."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return total - sum(experts.idle for experts in experts_of(model))
