"""Faster functions with the names and signatures of the plain ones in `ops`.

Each runs as a Triton kernel where that can serve, else as the plain function; `registry` has the
modes that decide it.
"""

from unitsphere.kernels.adam import adam_project_
from unitsphere.kernels.attention import backends_of, use_attention_of
from unitsphere.kernels.fused_step import fused_step
from unitsphere.kernels.registry import Mode, mode, use_kernels, using_kernels
from unitsphere.kernels.residual import lerp_norm
from unitsphere.kernels.rope import rope_norm

__all__ = [
    "Mode",
    "adam_project_",
    "backends_of",
    "fused_step",
    "lerp_norm",
    "mode",
    "rope_norm",
    "use_attention_of",
    "use_kernels",
    "using_kernels",
]
