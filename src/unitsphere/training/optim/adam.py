"""Adam and AdamW, torch's own: fused where torch has it, weight decay never on gains."""

from collections.abc import Callable, Container
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam as TorchAdam
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from unitsphere.models.constraint import Role
from unitsphere.ops.dtensor import by_mesh
from unitsphere.training.optim.config import OptimConfig
from unitsphere.training.optim.registry import Definition, Parameters, definition
from unitsphere.training.optim.state import COUNT, Combined, Eager, StateSpec, like


class Adam(Eager, TorchAdam):
    """torch's Adam, which declares its state."""

    step = torch.no_grad()(unwrap(TorchAdam.step))  # without the compiler: see `Eager`

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """The count of steps and both moments."""
        return {"step": COUNT, "exp_avg": like(parameter, 1), "exp_avg_sq": like(parameter, 2)}


class AdamW(TorchAdamW, Adam):
    """torch's AdamW, which declares its state."""


def build_adam(parameters: Parameters, config: OptimConfig) -> Adam:
    """A group for each set of numbers and mesh; AdamW unless `optim.name` is adam or adamh.

    Fused it is 3 to 5 times faster on a CPU.
    """
    kind = AdamW if definition(config.name).decoupled else Adam
    return kind(
        grouped(parameters, config.adam_group),
        fused=all(p.device.type in ("cpu", "cuda") for p in parameters),
    )


def grouped(
    parameters: Parameters, settings: Callable[[Role], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Groups of the parameters that have the same settings by role and are on the same mesh."""
    alike: dict[tuple[Any, ...], list[Parameter]] = {}
    for parameter, role in parameters.items():
        alike.setdefault(tuple(settings(role).items()), []).append(parameter)
    return [
        {"params": held, **dict(numbers)}
        for numbers, members in alike.items()
        for held in by_mesh(members)
    ]


def with_adam(
    parameters: Parameters,
    config: OptimConfig,
    build: Callable[[list[dict[str, Any]]], Optimizer],
    wanted: Container[Role] = ("matrix",),
) -> Optimizer:
    """What `build` makes of the groups of the wanted roles, with Adam over the rest, as one."""
    chosen: Parameters = {p: role for p, role in parameters.items() if role in wanted}
    others: Parameters = {p: role for p, role in parameters.items() if p not in chosen}
    adam = build_adam(others, config)
    return Combined(build(grouped(chosen, config.group)), adam) if chosen else adam


ADAM = Definition(build_adam, decoupled=False)
ADAMW = Definition(build_adam, reads=frozenset({"weight_decay"}))
ADAMH = Definition(build_adam, constraint="hyperball", decoupled=False)
"""Adam whose matrices and head are on `hyperball` (projection.py)."""
