"""The architectures by name. A new one is a file next to this and a line in `ARCHITECTURES`."""

from dataclasses import dataclass, is_dataclass
from typing import Any, get_args

import torch
from torch import nn

from unitsphere.config import did_you_mean, from_dict, to_dict
from unitsphere.errors import UserError
from unitsphere.models.angpt import ANGPT, ANGPTConfig
from unitsphere.models.config import check_shape
from unitsphere.models.constraint import Role, roles
from unitsphere.models.dyt import DyTConfig, DyTGPT
from unitsphere.models.gpt import GPT, GPTConfig
from unitsphere.models.lnscaling import LNScaling, LNScalingConfig
from unitsphere.models.ngpt import NGPT, NGPTConfig
from unitsphere.models.normformer import NormFormer, NormFormerConfig
from unitsphere.models.rezero import ReZero, ReZeroConfig
from unitsphere.models.trunk import Objective, Transformer


@dataclass(frozen=True)
class Architecture:
    """A model class and the config that it takes."""

    config: type
    model: type[Transformer]


ARCHITECTURES: dict[str, Architecture] = {
    "gpt": Architecture(GPTConfig, GPT),
    "ngpt": Architecture(NGPTConfig, NGPT),
    "angpt": Architecture(ANGPTConfig, ANGPT),
    "normformer": Architecture(NormFormerConfig, NormFormer),
    "rezero": Architecture(ReZeroConfig, ReZero),
    "lnscaling": Architecture(LNScalingConfig, LNScaling),
    "dyt": Architecture(DyTConfig, DyTGPT),
}

MOST_LAYERS = 2_000
"""Twice the deepest published Transformer (DeepNet, arXiv 2203.00555): beyond it laying out the
model takes minutes."""


def architecture(name: str) -> Architecture:
    """The architecture of that name; a `UserError` with the nearest name otherwise."""
    if name not in ARCHITECTURES:
        raise UserError(f"unknown architecture '{name}'{did_you_mean(name, ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_from(
    name: str,
    config: Any,
    device: torch.device | str = "cpu",
    seed: int = 0,
    objective: Objective = "clm",
) -> Transformer:
    """The model of a config, initialised on `device` with its own generator; "meta": only shapes.

    It is laid out on the meta device first, so nothing is allocated or drawn twice.
    """
    model = lay_out(name, config, objective)
    if torch.device(device).type == "meta":
        return model
    try:
        allocate(model, device)
    except RuntimeError as error:  # no room: on a GPU too, whose error is one of these
        first = str(error).partition("\n")[0]
        raise UserError(f"a model of these sizes has no room on {device}: {first}") from error
    model.init_weights(torch.Generator(device).manual_seed(seed))
    return model


def allocate(model: Transformer, device: torch.device | str) -> None:
    """Give parameters on the meta device their memory on `device`, in place.

    As `to_empty`, which imports torch's symbolic shapes, and so sympy, for tensors without values.
    """
    for module in model.modules():
        for name, laid_out in list(module.named_parameters(recurse=False)):
            room = torch.empty(laid_out.shape, dtype=laid_out.dtype, device=device)
            module.register_parameter(name, nn.Parameter(room, laid_out.requires_grad))
        for name, laid_out in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty_like(laid_out, device=device))


def lay_out(name: str, config: Any, objective: Objective = "clm") -> Transformer:
    """The model of a config on the meta device, where its tensors have only a shape."""
    check_shape(config)
    if config.n_layers > MOST_LAYERS:
        raise UserError(f"model.n_layers must be at most {MOST_LAYERS:,}: {config.n_layers}")
    try:
        with torch.device("meta"):
            return architecture(name).model(config, objective)
    except RuntimeError as error:  # a tensor of more than 2^63 bytes
        first = str(error).partition("\n")[0]
        raise UserError(f"a model of these sizes cannot be built: {first}") from error


def count_by_role(model: Transformer) -> dict[Role, int]:
    """Exact number of a model's parameters by role."""
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    found: dict[Role, int] = {}
    for key, role in roles(model).items():
        found[role] = found.get(role, 0) + sizes[key]
    return found


def build(
    name: str,
    *,
    objective: Objective = "clm",
    device: torch.device | str = "cpu",
    seed: int = 0,
    **numbers: Any,
) -> Transformer:
    """A model by the architecture's name, what it is trained for, and its config's fields.

    A field that is a table, such as `alpha`, may be a dict of some of its keys. Raises UserError
    for a name, an objective, a field, a type or a size that cannot be used.

    >>> build("ngpt", vocab_size=256, d_model=64, n_layers=2, n_heads=2).config.d_model
    64
    """
    kinds = architecture(name).config
    unknown = [key for key in numbers if key not in kinds.__dataclass_fields__]
    if unknown:
        hint = did_you_mean(unknown[0], kinds.__dataclass_fields__)
        raise UserError(f"{name} has no setting '{unknown[0]}'{hint}")
    if objective not in get_args(Objective):  # the trunk would take any other for clm
        raise UserError(
            f"unknown objective {objective!r}{did_you_mean(str(objective), get_args(Objective))}"
        )
    plain = {k: to_dict(v) if is_dataclass(v) else v for k, v in numbers.items()}
    return build_from(name, from_dict(kinds, plain, "model."), device, seed, objective)
