"""The optimizers by name. A new one is a file next to this and a line in `OPTIMIZERS`.

The line says where the file's `Definition` is. The optimizer that it builds declares its state
(`state_spec`, see state.py); checkpoints, the forecast of memory and probes need nothing else.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.models.constraint import Role

OPTIMIZERS: dict[str, str] = {
    "adam": "unitsphere.training.optim.adam:ADAM",
    "adamw": "unitsphere.training.optim.adam:ADAMW",
    "muon": "unitsphere.training.optim.muon:MUON",
    "normuon": "unitsphere.training.optim.muon:NORMUON",
    "muonh": "unitsphere.training.optim.muon:MUONH",
    "adamh": "unitsphere.training.optim.adam:ADAMH",
    "soap": "unitsphere.training.optim.soap:SOAP",
    "soap-muon": "unitsphere.training.optim.soap:SOAP_MUON",
    "gated-adamw": "unitsphere.training.optim.adam:GATED",
}
"""Value of `optim.name` -> module and name of its definition."""

Parameters = Mapping[Parameter, Role]
"""What an optimizer is built over: the model's parameters, each with its declared role."""


@dataclass(frozen=True)
class Definition:
    """How an optimizer is built, and the keys of `optim.*` that it reads."""

    build: Callable[[Parameters, Any], Optimizer]
    """makes it, from parameters and an `OptimConfig`; it must declare its state"""
    reads: frozenset[str] = frozenset()
    """those keys of `optim.*` that only some optimizers read, and this one does"""
    section: type | None = None
    """dataclass of this optimizer's own keys, `optim.<name>.*`, if it has any"""
    constraint: str | None = None
    """the `optim.constraint.kind` that belongs to its name, on the head too"""
    decoupled: bool = True
    """what it does not train by its own rule is trained by AdamW; false: by Adam"""


def definition(name: str) -> Definition:
    """The definition of the optimizer `name`; a `UserError` with the nearest name otherwise."""
    if name not in OPTIMIZERS:
        raise UserError(f"unknown optimizer '{name}'{did_you_mean(name, OPTIMIZERS)}")
    module, _, attribute = OPTIMIZERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def section_key(name: str) -> str:
    """The key of an optimizer's own section: its name, as Python can spell it."""
    return name.replace("-", "_")
