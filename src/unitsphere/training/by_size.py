"""Numbers that follow a run's size: forms in a recipe, and the laws of `optim.transfer`.

A number of a model may follow its width d and its depth L, `init = "sqrt(d)"` in a recipe. A form
is d, L, sqrt(d) or sqrt(L), times a number or dividing one: "sqrt(d)", "0.5*sqrt(d)", "1/L". It is
a number as soon as the config is made, and is computed again where a size is set later, by an
option or a study; config.json has the number.

By a law, the rates of a tuned run become those of another size.
`optim.base` is the tuned run: width d₀, depth L₀, tokens T₀, batch B₀. With m_w = d/d₀, m_L = L/L₀,
m_T = T/T₀ and m_B = B/B₀, a peak rate is the base's times

    rate_by_tokens · rate_by_batch · rate_by_depth · rate_by_width

and what multiplies a sublayer's output, α or `model.branch`, is the base's times `branch_by_depth`.

`nu` is νGPT's (arXiv 2604.27077, §3.1 and Table 1), written for nGPT with Adam. `hyperp` is
HyperP's as its code has it (arXiv 2603.28743, microsoft/ArchScale `pretrain.py`), for a constant
Frobenius norm (MuonH, AdamH); `hyperp-paper` is its Table 1, where the horizon acts on the layers'
matrices only. What neither paper covers is a proposal of this project, marked [P], or is derived
from a paper's rule by the size of an update, marked [D]; docs/how-to/transfer.md says which.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeVar, get_args

from unitsphere.config import field_types
from unitsphere.errors import UserError

Config = TypeVar("Config")
FORM = re.compile(r"(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?) ?([*/]) ?)?(?:sqrt\(([dL])\)|([dL]))")
EXAMPLES = '"sqrt(d)", "0.5*sqrt(d)", "1/sqrt(d)" or "1/L" (d: model.d_model, L: model.n_layers)'


class BySize(float):
    """The number that a form comes to at the sizes given, which knows its form."""

    form: str
    sizes: tuple[int, int]

    def __new__(cls, form: str, d: int = 1, L: int = 1) -> Self:
        """Raises UserError for what is not a form."""
        match = FORM.fullmatch(form.strip())
        if match is None:
            raise UserError(f"'{form}' is neither a number nor a form such as {EXAMPLES}")
        factor, sign, root, plain = match.groups("")
        size = max({"d": d, "L": L}[root or plain], 1)  # sizes below 1 are refused with the model
        value = math.sqrt(size) if root else float(size)
        number = float(factor or 1)
        self = super().__new__(cls, number / value if sign == "/" else number * value)
        self.form, self.sizes = form, (d, L)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getnewargs__(self) -> Any:
        return self.form, *self.sizes


def is_number(kind: Any) -> bool:
    """Whether a field's type is a number, or that or none."""
    return kind is float or float in typing.get_args(kind)


def read_forms(cls: type, data: Mapping[str, Any], where: str = "model.") -> dict[str, Any]:
    """The table of a config of type `cls` with every text in the place of a number read as a form.

    Raises UserError for what is not a form.
    """
    kinds, found = field_types(cls), dict(data)
    for key, value in data.items():
        kind = kinds.get(key)
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            found[key] = read_forms(typing.cast(type, kind), value, f"{where}{key}.")
        elif isinstance(value, str) and is_number(kind):
            try:
                found[key] = BySize(value)
            except UserError as error:
                raise UserError(f"{where}{key}: {error}") from None
    return found


def at_sizes(model: Config) -> Config:
    """A model's config, each number that has a form as d_model and n_layers make it."""
    return changed(model, None, lambda number, _: BySize(number.form, *sizes(model)))


def sizes(model: Any) -> tuple[int, int]:
    """d and L."""
    return model.d_model, model.n_layers


def without_forms(model: Config, saved: Any) -> Config:
    """A model's config in which numbers have forms no longer, for good.

    Where `saved`, a run's model or None, has such a number to some of its digits, these stay:
    recipes used to have three of them, or nine.
    """

    def keep(number: BySize, before: Any) -> float:
        written = {float(f"{number:.{digits}g}") for digits in range(3, 17)}
        return before if before in written else float(number)

    return changed(model, saved, keep)


def changed(config: Config, other: Any, make: Callable[[BySize, Any], float]) -> Config:
    """The config with `make(number, other's)` for each number in it that has a form."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, config)):
        value, known = getattr(config, field.name), getattr(other, field.name, None)
        if dataclasses.is_dataclass(value):
            found[field.name] = changed(value, known, make)
        elif isinstance(value, BySize):
            found[field.name] = make(value, known)
    return dataclasses.replace(typing.cast(Any, config), **found)


Law = Literal["nu", "hyperp", "hyperp-paper"]
Transfer = Literal["none", "nu", "hyperp", "hyperp-paper"]
Group = Literal["matrix", "embedding", "head", "scale"]
"""Parameters of one rate: those of `optim.rates`, and the layers' matrices."""
Moved = Literal["adam", "muon", "muon-original", "hyperball"]
"""How far a step moves a matrix: as Adam's entries; as Muon's with adjust_lr match_rms_adamw, or
original; or by a share of its Frobenius norm."""
Weights = Literal["bound", "free"]
"""bound: vectors of length 1, or at most 1 (nGPT, anGPT); free: entries of one size at any width
(GPT, GPT+)."""


@dataclass(frozen=True)
class BaseRatesConfig:
    """The tuned run's `optim.rates`."""

    embedding: float | None = None
    """of the input embedding; none: as optim.rates"""
    head: float | None = None
    """of the output head; none: as optim.rates"""
    scale: float | None = None
    """of scaling parameters, gains and biases; none: as optim.rates"""


@dataclass(frozen=True)
class BaseConfig:
    """The run whose rates were tuned."""

    name: str | None = None
    """its optim.name; none: not checked"""
    width: int | None = None
    """its model.d_model"""
    depth: int | None = None
    """its model.n_layers"""
    tokens: float | None = None
    """its training tokens"""
    batch_tokens: int | None = None
    """its train.batch_tokens"""
    lr: float | None = None
    """its peak rate, optim.lr"""
    adam_lr: float | None = None
    """its optim.adam_lr; none: as optim.adam_lr"""
    rates: BaseRatesConfig = BaseRatesConfig()
    """its optim.rates"""

    def __post_init__(self) -> None:
        table = asdict(self)
        rates, _ = table.pop("rates"), table.pop("name")
        for key, value in {**table, **{f"rates.{k}": v for k, v in rates.items()}}.items():
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"optim.base.{key} must be a number above 0: {value}")


@dataclass(frozen=True)
class Ratios:
    """A run's sizes, each divided by the base's."""

    width: float
    depth: float
    tokens: float
    batch: float


TOKENS: dict[Law, float] = {"nu": -1 / 3, "hyperp": -0.32, "hyperp-paper": -0.32}
NU_ADAM_FREE = ("nu", "free", "adam")
"""The law, the weights and what moves the matrices, where `nu` has exponents of its own."""
TOKENS_ADAM_FREE = -0.15
"""nu's exponent where Adam moves the matrices of a GPT, which νGPT does not cover [P].

Measured over 4 and 27 times the tokens (docs/results/transfer.md); −1/3 cost 0.10 nats there."""
DEPTH: dict[Law, float] = {"nu": 0.0, "hyperp": -1 / 2, "hyperp-paper": -1 / 2}
BATCH = 1 / 2
BATCH_ADAM_FREE = 0.0
"""nu's exponent where Adam moves the matrices of a GPT [P]: at 4 and 8 times the batch the best
rate is about the base's or lower, and √m_B cost 0.05 and 0.14 nats (docs/results/transfer.md)."""
BRANCH: dict[Law, float] = {"nu": -1.0, "hyperp": -1 / 2, "hyperp-paper": -1 / 2}
S_Z = 1 / 2

WIDTH: dict[tuple[Law, Weights], dict[Group, float]] = {
    ("nu", "bound"): {"matrix": -3 / 4, "head": -3 / 4, "embedding": -1 / 2, "scale": 0.0},
    ("nu", "free"): {"matrix": -1.0, "head": -1 / 2, "embedding": -1 / 2, "scale": 0.0},
    **{
        ("hyperp", weights): {"matrix": -1 / 2, "head": 0.0, "embedding": 0.0, "scale": 0.0}
        for weights in get_args(Weights)
    },
    **{
        ("hyperp-paper", weights): {
            "matrix": -1 / 2,
            "head": -1 / 2,
            "embedding": -1 / 2,
            "scale": 0.0,
        }
        for weights in get_args(Weights)
    },
}
"""Exponents of m_w in the rates of what Adam moves.

nu, bound: νGPT's Table 1; −3/4 comes of measured alignment. nu, free [P]: μP's −1 for the layers'
matrices (arXiv 2203.03466, Table 3), measured at 2 and 3 times the width, where −3/4 cost 0.16 nats
(docs/results/transfer.md); embedding and head −1/2 as in nanochat (aux rates × (d/768)^−1/2).
hyperp: no width term, as coded; for matrices that Adam moves by entries, −1/2 keeps the step
relative to the matrix, whose entries are of size 1/√d, constant [D]."""

WIDTH_ADAM_FREE = {**WIDTH["nu", "free"], "embedding": 0.0}
"""The same where Adam moves the matrices of a GPT, by `nu` [P]: μP's 0 for the embedding, where
−1/2 cost 0.03 to 0.06 nats at 3 times the width."""

WIDTH_BY_STEP: dict[Moved, float] = {"muon": -1 / 2, "muon-original": 0.0, "hyperball": 0.0}
"""Exponents of m_w in the rates of matrices that Adam does not move, by any law [D].

match_rms_adamw gives an update singular values of 0.2·lr·√max(out, in), so −1/2 keeps them
constant, as "original" does by itself; a relative step has no width (HyperP)."""


def rate_by_tokens(law: Law, weights: Weights, matrices: Moved, group: Group, m_T: float) -> float:
    """m_T^(−1/3) (νGPT §3.1) or m_T^(−0.32) (HyperP's fit, 10 to 166 billion tokens).

    All groups of a run follow its `matrices`; of a GPT by Adam, nu has TOKENS_ADAM_FREE. νGPT
    counts steps at one batch, which is the same. HyperP's Table 1 has it on matrices only.
    """
    if law == "hyperp-paper" and group != "matrix":
        return 1.0
    if (law, weights, matrices) == NU_ADAM_FREE:
        return m_T**TOKENS_ADAM_FREE
    return m_T ** TOKENS[law]


def rate_by_batch(law: Law, weights: Weights, matrices: Moved, m_B: float) -> float:
    """√m_B at equal tokens: HyperP's code (measured: m_B^0.558); [P] for nu.

    All groups of a run follow its `matrices`; of a GPT by Adam, nu has BATCH_ADAM_FREE.
    """
    if (law, weights, matrices) == NU_ADAM_FREE:
        return m_B**BATCH_ADAM_FREE
    return m_B**BATCH


def rate_by_depth(law: Law, m_L: float) -> float:
    """1 (νGPT: m_L^(−1/2) breaks transfer, Figure 8) or m_L^(−1/2) (HyperP's code, √(8/L))."""
    return m_L ** DEPTH[law]


def rate_by_width(
    law: Law, weights: Weights, matrices: Moved, group: Group, moved: Moved, m_w: float
) -> float:
    """m_w to the exponent of WIDTH or WIDTH_BY_STEP; of a GPT by Adam, nu has WIDTH_ADAM_FREE."""
    if moved != "adam":
        return m_w ** WIDTH_BY_STEP[moved]
    own = (law, weights, matrices) == NU_ADAM_FREE
    return m_w ** (WIDTH_ADAM_FREE if own else WIDTH[law, weights])[group]


def rate_factor(
    law: Law, weights: Weights, matrices: Moved, group: Group, moved: Moved, m: Ratios
) -> float:
    """A group's peak rate divided by the base run's; `moved` is the group's own."""
    return (
        rate_by_width(law, weights, matrices, group, moved, m.width)
        * rate_by_depth(law, m.depth)
        * rate_by_tokens(law, weights, matrices, group, m.tokens)
        * rate_by_batch(law, weights, matrices, m.batch)
    )


def decay_by_steps(rate: float, m: Ratios) -> float:
    """1/(rate · m_T/m_B) (Wang and Aitchison, arXiv 2405.13698); rate: optim.lr ÷ the base's.

    The decay of a whole run, the sum of lr · weight_decay over its steps, stays the base's: AdamW
    averages its updates over the same share of the run.
    """
    return 1 / (rate * m.tokens / m.batch)


def branch_by_depth(law: Law, m_L: float) -> float:
    """m_L^(−1) (νGPT: α = 0.05/m_L) or m_L^(−1/2) (HyperP: branch outputs × 1/√(2L)).

    For α and for GPT's `model.branch`: νGPT has α only, and CompleteP (arXiv 2505.01618) has the
    same 1/L on a GPT's branches [P].
    """
    return m_L ** BRANCH[law]


def s_z_by_width(m_w: float) -> float:
    """√m_w (νGPT, Lemma 6.8): the logits of unit vectors keep their standard deviation."""
    return m_w**S_Z


def stored_scale(width: int) -> float:
    """1/√d₀, the base's, at any width: a raw vector moves at the plain rate (νGPT §6.1)."""
    return 1 / math.sqrt(width)
