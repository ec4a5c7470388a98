"""The start of a model that is spread over processes: the numbers that one process would have.

Such a model is laid out on the meta device, which holds nothing. Each process then draws the same
start as a single one, layer by layer from one generator, and keeps its own part of each: beside its
parts it never holds more than one layer's matrix.
"""

import torch
from torch import nn

from unitsphere.models.constraint import normalize_
from unitsphere.models.parts import Resets
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import local, part_of
from unitsphere.training.config import RunConfig


@torch.no_grad()
def fill(model: Transformer, config: RunConfig, device: torch.device) -> None:
    """Bring the parameters of `model`, the meta device's, to `device`, at the start of the run."""
    model.to_empty(device=device)
    whole = build_from(config.architecture, config.model, "meta", objective=config.objective)
    generator = torch.Generator(device).manual_seed(config.train.seed)
    for name, module in whole.named_modules():
        module.to_empty(device=device, recurse=False)
        reset(module, generator)
        normalize_(module)
        for key, start in module.named_parameters(name, recurse=False):
            target = model.get_parameter(key)
            local(target).copy_(part_of(start, target))
        module.to_empty(device="meta", recurse=False)


def reset(module: nn.Module, generator: torch.Generator) -> None:
    """Draw what the module owns, if it owns anything."""
    if isinstance(module, Resets):
        module.reset(generator)
