"""Blocks whose matrices multiply in FP8; embedding, head, norms and scales stay as they are."""

import logging

from unitsphere.models.parts import Linear
from unitsphere.models.trunk import Transformer
from unitsphere.ops.fp8 import MULTIPLE, Bounded
from unitsphere.training.optim.constraint import Kind, bounds_of

log = logging.getLogger("unitsphere.fp8")


def use_fp8(model: Transformer, kind: Kind = "declared") -> None:
    """Let every `Linear` of the blocks multiply in FP8 from now on (`ops.fp8`).

    `kind` is the constraint that training keeps. Weights that it bounds have a static scale, and
    so have their inputs where the architecture declares a bound; all else has dynamic ones.
    Layers whose sizes are no multiples of 16 stay as they are, logged once.

    Call it before `torch.compile`. Training wants bf16 autocast around the forward pass; a CPU
    computes the same numbers, but slower than in fp32.
    """
    radius = {c.parameter: c.radius for c in bounds_of(model, kind)}
    plain: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, Linear) and layer.role == "matrix":
            if any(size % MULTIPLE for size in layer.weight.shape):
                plain.append(name)
                continue
            weight = radius.get(f"{name}.weight")
            layer.fp8 = Bounded(layer.input_bound if weight is not None else None, weight)
    if plain:
        log.warning(
            "fp8: %s and %d more are multiplied in bf16: their sizes are no multiples of %d",
            plain[0],
            len(plain) - 1,
            MULTIPLE,
        )
