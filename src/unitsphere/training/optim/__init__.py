"""Optimizers, found by name in a registry; the constraint that belongs to them; the schedule."""

from unitsphere.training.optim.config import (
    OptimConfig,
    build_optimizer,
    optim_config_type,
    with_sections,
)
from unitsphere.training.optim.roles import RatesConfig, RoleConfig, RolesConfig

__all__ = [
    "OptimConfig",
    "RatesConfig",
    "RoleConfig",
    "RolesConfig",
    "build_optimizer",
    "optim_config_type",
    "with_sections",
]
