"""A run's config at the rates of its size (`optim.transfer`); the laws are in by_size.py.

What a recipe of the package or a default says is open: the law sets it. What the user says, in a
recipe of their own, a study or on the command line, is not, nor is anything in a config.json. So a
config that was resolved once is the same when it is read again.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Self, TypeVar, cast

from unitsphere.errors import UserError
from unitsphere.training.by_size import (
    BySize,
    Group,
    Moved,
    Ratios,
    Weights,
    branch_by_depth,
    decay_by_steps,
    rate_by_batch,
    rate_by_depth,
    rate_by_tokens,
    rate_by_width,
    rate_factor,
    s_z_by_width,
    sizes,
    stored_scale,
)
from unitsphere.training.optim import OptimConfig

C = TypeVar("C")

WEIGHTS: dict[str, Weights] = {"ngpt": "bound", "angpt": "bound", "gpt": "free"}
"""Architectures that the laws cover, by what holds their matrices."""
OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adam",
    "muon": "muon",
    "normuon": "muon",
    "muonh": "muonh",
    "adamh": "adamh",
}
"""Optimizers that the laws cover; those of one kind take each other's rates."""
OWN_RATES: tuple[Group, ...] = ("embedding", "head", "scale")
"""Groups whose rate has a law of its own; a router's follows that of the matrices."""
KEYS = (
    "optim.lr",
    "optim.adam_lr",
    "optim.weight_decay",
    *(f"optim.rates.{group}" for group in OWN_RATES),
    "model.alpha.init",
    "model.s_z.init",
    "model.alpha.scale",
    "model.s_qk.scale",
    "model.s_z.scale",
    "model.branch",
)
"""The keys that a law may set, of those that an architecture has."""
LONGER = 4
"""From how many times the base's tokens on, or down to which part, a run is told of the law."""


class Open(float):
    """A number that the user did not give; `own` is what it is without a law."""

    own: float | None

    def __new__(cls, value: float, own: float | None) -> Self:
        """The value now; `own` is what it is without a law."""
        self = super().__new__(cls, value)
        self.own = own
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getnewargs__(self) -> Any:
        return float(self), self.own


def opened(config: C, given: Collection[str]) -> C:
    """A run's config whose numbers are open but for those of the keys `given` by the user."""
    found = {key: value for key in KEYS if key not in given and (value := at(config, key))}
    return put(config, {key: Open(value, value) for key, value in found.items()})


def closed(config: C) -> C:
    """A run's config with every number as it is, for good: none is open any longer."""
    return put(config, {key: plain(config, value) for key, value in open_numbers(config).items()})


def plain(config: Any, value: Open) -> float | None:
    """What an open number is: its own, which may have a form, or what the law has made of it."""
    return float(value) if config.optim.transfer != "none" else now(config, value.own)


def transferred(config: Any) -> tuple[Any, OptimConfig]:
    """The model and the optimizer of a run's config with every open number at its value.

    Raises UserError for a law without a base run, or for what it does not cover.
    """
    if config.optim.transfer == "none":
        present = {key: now(config, value.own) for key, value in open_numbers(config).items()}
    elif why := problem(config):
        raise UserError(why)
    else:
        present = {k: v for k, v in by_law(config).items() if is_open(at(config, k))}
    values = {
        key: None if value is None else Open(value, own_of(at(config, key)))
        for key, value in present.items()
    }
    optim, model = (below(values, name) for name in ("optim", "model"))
    return put(config.model, model), put(config.optim, optim)


def by_law(config: Any) -> dict[str, float | None]:
    """What the law makes of each key that the config's architecture has."""
    law, base, m = config.optim.transfer, config.optim.base, ratios(config)
    matrix = group_factor(config, "matrix", m)
    adam_lr = base.adam_lr or own_of(config.optim.adam_lr)
    lr = base.lr * matrix
    used = lr if is_open(config.optim.lr) else config.optim.lr
    found: dict[str, float | None] = {
        "optim.lr": lr,
        "optim.adam_lr": None if adam_lr is None else adam_lr * matrix,
    }
    for group in OWN_RATES:
        tuned: Any = getattr(base.rates, group) or own_of(getattr(config.optim.rates, group))
        found[f"optim.rates.{group}"] = tuned * (group_factor(config, group, m) / matrix)
    factors = {
        "optim.weight_decay": decay_by_steps(used / base.lr, m),
        "model.alpha.init": branch_by_depth(law, m.depth),
        "model.branch": branch_by_depth(law, m.depth),
        "model.s_z.init": s_z_by_width(m.width),
    }
    for key, factor in factors.items():
        own = own_of(at(config, key))
        if isinstance(own, BySize):
            own = BySize(own.form, base.width, base.depth)
        if own is not None:
            found[key] = own * factor
    for name in ("alpha", "s_qk", "s_z"):
        key = f"model.{name}.scale"
        if hasattr(config.model, name) and own_of(at(config, key)) is None:
            found[key] = None if m.width == 1 else stored_scale(base.width)
    return found


def ratios(config: Any) -> Ratios:
    """The sizes of a config, each divided by those of its base run."""
    base, train = config.optim.base, config.train
    width, depth = sizes(config.model)
    return Ratios(
        width / base.width,
        depth / base.depth,
        train.steps * train.batch_tokens / base.tokens,
        train.batch_tokens / base.batch_tokens,
    )


def group_factor(config: Any, group: Group, m: Ratios) -> float:
    """A group's rate divided by the base run's."""
    optim = config.optim
    weights, matrices = WEIGHTS[config.architecture], moved(optim, "matrix")
    return rate_factor(optim.transfer, weights, matrices, group, moved(optim, group), m)


def moved(optim: OptimConfig, group: Group) -> Moved:
    """How far a step of this optimizer moves the parameters of a group."""
    held = optim.constrained
    if held.kind == "hyperball" and (group == "matrix" or (group == "head" and held.head)):
        return "hyperball"
    by_muon = group == "matrix" or (group == "head" and optim.muon_head)
    if not by_muon or optim.name not in ("muon", "normuon", "muonh"):
        return "adam"
    return "muon" if optim.adjust_lr == "match_rms_adamw" else "muon-original"


def problem(config: Any) -> str | None:
    """Why no law of `optim.transfer` serves a config; None if they do."""
    optim = config.optim
    needed = ("width", "depth", "tokens", "batch_tokens", "lr")
    missing = [f"optim.base.{key}" for key in needed if getattr(optim.base, key) is None]
    if missing:
        return (
            f"optim.transfer needs the run whose rate was tuned: set {', '.join(missing)} "
            "(docs/how-to/transfer.md), or set optim.transfer none"
        )
    covered = {
        "architecture": (config.architecture, WEIGHTS),
        "optim.name": (optim.name, OPTIMIZERS),
    }
    for key, (name, names) in covered.items():
        if name not in names:
            return (
                f"optim.transfer has no law for {key} {name}, only for {', '.join(names)}: "
                "set optim.transfer none, and optim.lr"
            )
    tuned = optim.base.name
    if tuned is not None and OPTIMIZERS.get(tuned) != OPTIMIZERS[optim.name]:
        return (
            f"the rates of optim.base are of {tuned} (optim.base.name), and optim.name is "
            f"{optim.name}: set optim.base.lr, optim.base.rates and optim.base.name to a tuned "
            f"run's by {optim.name}, or set optim.transfer none, and optim.lr"
        )
    return None


def reason(config: Any) -> str | None:
    """A line that says which rate the run takes and why; None without a law."""
    law, base = config.optim.transfer, config.optim.base
    if law == "none":
        return None
    rate, lr = by_law(config)["optim.lr"], config.optim.lr
    m, how = ratios(config), moved(config.optim, "matrix")
    weights = WEIGHTS[config.architecture]
    width, depth = sizes(config.model)
    train = config.train
    factors = {
        f"width {base.width:,} → {width:,}": rate_by_width(
            law, weights, how, "matrix", how, m.width
        ),
        f"depth {base.depth:,} → {depth:,}": rate_by_depth(law, m.depth),
        f"tokens {base.tokens:,.0f} → {train.steps * train.batch_tokens:,}": rate_by_tokens(
            law, weights, how, "matrix", m.tokens
        ),
        f"batch {base.batch_tokens:,} → {train.batch_tokens:,}": rate_by_batch(
            law, weights, how, m.batch
        ),
    }
    steps = "".join(f" × {factor:.4g} ({why})" for why, factor in factors.items() if factor != 1)
    found = f"{base.lr:g} of the base run{steps or ', at its sizes'}"
    own, decay = own_of(config.optim.weight_decay), config.optim.weight_decay
    found += f"; optim.weight_decay {decay:.3g}, not {own:g}" if decay != own else ""
    if lr != rate:
        return f"optim.lr {lr:.4g} as given; optim.transfer {law} would take {rate:.4g}: {found}"
    return f"optim.lr {lr:.4g} by optim.transfer {law}: {found}"


def advice(config: Any) -> str | None:
    """A line for a run far from the size that its rate was tuned at; None where it is near.

    None too where the rate is the user's own, or where no law serves.
    """
    base, lr = config.optim.base, config.optim.lr
    if config.optim.transfer != "none" or not is_open(lr) or problem(config):
        return None
    m = ratios(config)
    if m.width == m.depth == 1 and 1 / LONGER < m.tokens < LONGER:
        return None
    tuned = f"width {base.width:,}, depth {base.depth:,} and {base.tokens:,.0f} tokens"
    law = by_law(put(config, {"optim": dataclasses.replace(config.optim, transfer="nu")}))
    decay = law["optim.weight_decay"] if is_open(config.optim.weight_decay) else None
    more = f" and optim.weight_decay {decay:.3g}" if decay else ""
    return (
        f"optim.lr {lr:.4g} is the recipe's; rates were tuned at {tuned}: --optim.transfer nu "
        f"would take {law['optim.lr']:.4g}{more} here (docs/how-to/transfer.md)"
    )


def open_numbers(config: Any) -> dict[str, Open]:
    """The keys whose numbers are open."""
    found = {key: at(config, key) for key in KEYS}
    return {key: value for key, value in found.items() if isinstance(value, Open)}


def is_open(value: Any) -> bool:
    """Whether a law may set this value: an open number, or none, which names nothing."""
    return value is None or isinstance(value, Open)


def own_of(value: float | None) -> float | None:
    """A number without a law."""
    return value.own if isinstance(value, Open) else value


def now(config: Any, number: float | None) -> float | None:
    """A number that may have a form, at the config's sizes."""
    return BySize(number.form, *sizes(config.model)) if isinstance(number, BySize) else number


def at(config: Any, key: str) -> Any:
    """The value at a dotted key; None where the config has no such key."""
    for name in key.split("."):
        config = getattr(config, name, None)
    return config


def put(config: C, values: Mapping[str, Any]) -> C:
    """A config with the values at dotted keys replaced."""
    if not values:
        return config
    names = dict.fromkeys(key.partition(".")[0] for key in values)
    changed = {
        name: values[name] if name in values else put(getattr(config, name), below(values, name))
        for name in names
    }
    return dataclasses.replace(cast(Any, config), **changed)


def below(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of one section, by their keys within it."""
    return {k.removeprefix(f"{name}."): v for k, v in values.items() if k.startswith(f"{name}.")}
