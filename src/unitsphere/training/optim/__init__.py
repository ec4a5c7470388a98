"""Optimizers, found by name in a registry; the constraint that belongs to them; the schedule."""

from unitsphere.training.optim.config import (
    OptimConfig,
    RatesConfig,
    build_optimizer,
    optim_config_type,
    with_sections,
)

__all__ = ["OptimConfig", "RatesConfig", "build_optimizer", "optim_config_type", "with_sections"]
