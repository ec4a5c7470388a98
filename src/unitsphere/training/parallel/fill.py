"""The start of a model that is spread over processes: the numbers that one process would have.

Such a model is laid out on the meta device, which holds nothing. Each process then draws the same
start as a single one, layer by layer from one generator, and keeps its own part of each: beside its
parts it never holds more than one layer's matrix.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from unitsphere.models.constraint import normalize_
from unitsphere.models.parts import Resets
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.ops.project import own
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
            own(target).copy_(part_of(start, target))
        module.to_empty(device="meta", recurse=False)


def reset(module: nn.Module, generator: torch.Generator) -> None:
    """Draw what the module owns, if it owns anything."""
    if isinstance(module, Resets):
        module.reset(generator)


def part_of(start: Tensor, target: Tensor) -> Tensor:
    """What this process's part of `target` is in the whole of it."""
    if not isinstance(target, DTensor):
        return start
    sizes, offsets = compute_local_shape_and_global_offset(
        start.shape, target.device_mesh, target.placements
    )
    return start[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))]
