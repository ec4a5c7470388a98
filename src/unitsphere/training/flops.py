"""Floating-point operations of training, and what devices can do, for the model FLOPs utilisation.

A token costs 6 operations for each weight that multiplies it (2 forward, 4 backward), and
attention 12·L·d·T for a context of T tokens, half of that where it is causal. Projections, norms
and scales, which are linear in d, are left out, so that all architectures are measured by the same
useful work.
"""

import torch

from unitsphere.models.constraint import roles
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import Precision

PEAK_BF16 = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 operations a second by a part of the GPU's name, from the makers' data sheets."""


def flops_per_token(model: Transformer, context: int) -> int:
    """Operations of one training token, forward and backward, in a context of `context` tokens."""
    role = roles(model)
    tied = "head" not in role.values()
    multiplied = {"matrix", "head"} | ({"embedding"} if tied else set())
    weights = sum(p.numel() for name, p in model.named_parameters() if role[name] in multiplied)
    seen = context if model.objective == "mlm" else context / 2
    return round(6 * weights + 12 * model.config.n_layers * model.config.d_model * seen)


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Peak operations a second of the device in that precision, or None where it is not known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_BF16.items() if part in name), None)
