"""Every design by its name, and every value of every switch of its config, from the types alone.

A switch that is added to a config is a case of the contract without a change here.
"""

import dataclasses
import types
import typing
from typing import Any, Literal

import torch

from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.models.trunk import Objective

OBJECTIVES: tuple[Objective, ...] = typing.get_args(Objective)
PRE_LN = dict.fromkeys(("post_attn_ln", "ffn_ln", "head_scale", "res_scale", "qkv_ln"), False)
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "gpt+": ("gpt", {"qk_norm": True, "rotary_fraction": 0.5}),
    "pre-ln": ("normformer", PRE_LN),
    "post-ln": ("normformer", {**PRE_LN, "norm": "post"}),
}
"""Design -> architecture and what it sets."""
EVERY = [(design, objective) for design in DESIGNS for objective in OBJECTIVES]

SIZES = {"vocab_size": 24, "d_model": 16, "n_layers": 1, "n_heads": 2}
SOURCE, TIME = 7, 6
SIZE_CASES = {"n_kv_heads": [1], "window": [3], "n_experts": [4], "bigram_rows": [30]}
SIZE_CASES |= {key: [] for key in ("mixers", "recurrence", "balance")}
"""Sizes that change what a layer does: what they are set to. Mixers: tests/protocols."""


def in_turn(design: str, case: int) -> Objective:
    """The objective of a design's case: they take turns, from another one in the next design.

    What a design sets and what its objective adds (a mask, a second stack of the same blocks) are
    apart in the code, and test_oracles_objectives.py has every switch with every objective.
    """
    return OBJECTIVES[(case + [*DESIGNS].index(design)) % len(OBJECTIVES)]


def start(config: type, field: dataclasses.Field[Any]) -> Any:
    """A field's default."""
    return getattr(config(), field.name)


def others(name: str, kind: Any, default: Any) -> list[Any]:
    """Values of a type that are not the default: all that can be listed, of a number one."""
    if name in SIZE_CASES:
        return SIZE_CASES[name]
    if kind is bool:
        return [not default]
    if typing.get_origin(kind) is Literal:
        return [value for value in typing.get_args(kind) if value != default]
    if kind is ScaleConfig:
        forms = typing.get_args(typing.get_type_hints(ScaleConfig)["form"])
        changes = [{"form": form} for form in forms if form != default.form]
        changes += [{"init": default.init + 0.3}, {"scale": 0.4}]
        return [dataclasses.replace(default, **change) for change in changes]
    if kind is float:
        return [default / 2 if default else 0.25]
    if isinstance(kind, types.UnionType) and float in typing.get_args(kind):
        return [2.5]
    if kind is int or isinstance(kind, types.UnionType):
        return []  # another size: test_edges.py
    raise TypeError(f"how does one change a {kind}?")


def label(name: str, value: Any, default: Any) -> str:
    """A case's name: the switch and its value, of a scale what differs."""
    if not isinstance(value, ScaleConfig):
        return f"{name}={value}"
    (key,) = [k for k in vars(value) if getattr(value, k) != getattr(default, k)]
    return f"{name}.{key}={getattr(value, key):.4}"


NEEDS: dict[str, dict[str, Any]] = {"key_offset": {"rotary_fraction": 0.5}}
"""What a switch needs beside it."""


def switches(design: str) -> dict[str, dict[str, Any]]:
    """Case -> what it sets beside the design: one switch at a time, off the design's own value."""
    architecture, numbers = DESIGNS[design]
    config = ARCHITECTURES[architecture].config
    hints = typing.get_type_hints(config)
    found: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(config):
        default = numbers.get(field.name, start(config, field))
        for value in others(field.name, hints[field.name], default):
            found[label(field.name, value, default)] = {field.name: value} | NEEDS.get(
                field.name, {}
            )
    return found


def tokens(rows: int, time: int, seed: int = 0, vocabulary: int = 24) -> torch.Tensor:
    """Random tokens [rows, time]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (rows, time), generator=generator)


def make(design: str, objective: Objective = "clm", **numbers: Any) -> Any:
    """A small model of a design."""
    architecture, own = DESIGNS[design]
    return build(architecture, objective=objective, **{**SIZES, **own, **numbers})


def source_of(model: Any, rows: int = 2, time: int = SOURCE, seed: int = 5) -> dict[str, Any]:
    """The `source` that a seq2seq model's loss needs; nothing for the others."""
    if model.objective != "seq2seq":
        return {}
    return {"source": tokens(rows, time, seed, model.config.vocab_size)}


def logits(model: Any, x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    """The model's logits, through its encoder if it has one."""
    return model(x, memory=None if source is None else model.encode(source))


def scattered(model: Any) -> Any:
    """The model in double, evaluating, every parameter off its start and off its constraint."""
    generator = torch.Generator().manual_seed(1)
    model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model
