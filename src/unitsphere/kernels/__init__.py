"""Faster functions with the names and signatures of the plain ones in `ops`.

Each runs as a kernel where that can serve, by Triton but for `attention`, else as the plain
function; `registry` has the modes that decide it.
"""

from unitsphere.kernels.device_attention import attention
from unitsphere.kernels.functions import (
    adam_project_,
    fused_step,
    lerp_norm,
    loss_path,
    rope_norm,
)
from unitsphere.kernels.registry import Mode, mode, use_kernels, using_kernels

__all__ = [
    "Mode",
    "adam_project_",
    "attention",
    "fused_step",
    "lerp_norm",
    "loss_path",
    "mode",
    "rope_norm",
    "use_kernels",
    "using_kernels",
]
