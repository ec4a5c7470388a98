"""Which of SDPA's kernels a GPU tries first (`ops.attention` is what calls them).

The first in the order that can serve a call does: cuDNN's and flash take no fp32, flash no mask.
torch.compile asks for the order when it traces, so it has to be set before: a compiled graph keeps
the kernel that it was traced with.
"""

import atexit
import os
from contextlib import ExitStack

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDNN_FIXED = 91501
"""cuDNN 9.15.1: before it, attention was wrong where a length was not a multiple of 128."""
OPT_OUT = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""torch's environment variable for users who do not want cuDNN first."""

_held = ExitStack()
atexit.register(_held.close)


def attention_backends(capability: tuple[int, int], cudnn: int | None) -> list[SDPBackend]:
    """SDPA's kernels in the order in which a GPU of that compute capability tries them.

    cuDNN's first on Hopper (9.0) and Blackwell (10.x), flash elsewhere. `cudnn` is the version as
    `torch.backends.cudnn.version()` gives it; None, where there is none. An old one comes last.
    """
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    first = capability[0] in (9, 10) and (cudnn or 0) >= CUDNN_FIXED
    if first and not os.environ.get(OPT_OUT):
        return [SDPBackend.CUDNN_ATTENTION, *fused]
    return [*fused, SDPBackend.CUDNN_ATTENTION]


def backends_of(device: torch.device) -> list[SDPBackend]:
    """`attention_backends` of a GPU that is here."""
    capability = torch.cuda.get_device_capability(device)
    return attention_backends(capability, torch.backends.cudnn.version())


def use_attention_of(device: torch.device) -> None:
    """Let SDPA try its kernels in the device's order, for the rest of the process."""
    _held.close()
    if device.type == "cuda":
        _held.enter_context(sdpa_kernel(backends_of(device), set_priority=True))
