"""The chunks of recurrent mixers by flash-linear-attention (fla), which the extra `fla` installs.

They take the place of the plain chunks in runs under bf16 or fp16 on a GPU, where the block is not
compiled. `train.kernels = "off"` keeps the plain ones; every other refusal is logged once. Since
fla is another project's, `require` does not ask for it.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

from unitsphere.kernels.registry import log_once, mode, no_backend

LARGEST_KEY = 256  # a program of fla's holds the keys of a head
NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Chunks:
    """A mixer's `plain` chunks, or the function `name` of fla's `module` where that can serve."""

    plain: Callable[..., tuple[Tensor, Tensor]]
    module: str
    name: str

    def __call__(
        self, dtype: torch.dtype, *inputs: Tensor, S: Tensor, segments: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """o [B, H, T, V] and the last S, as `plain(*inputs, S, segments)` gives them.

        dtype: in which the run multiplies. inputs: q, k [B, H or 1, T, K], v [B, H, T, V], the log
        decay and what the mixer has besides, [B, H, T] or [B, H, T, K], all as wide as S.
        """
        if mode() == "off":
            return self.plain(*inputs, S, segments)
        q, k, v, *gates = inputs
        device = S.device
        reason = no_backend(device.type, device.index, "auto") or refusal(dtype, S)
        reason = reason or wrong_gradients(device, gates[0])
        if reason is not None:
            level = logging.WARNING if device.type == "cuda" else logging.INFO
            log_once(level, self.name, reason)
            return self.plain(*inputs, S, segments)
        kernel = getattr(importlib.import_module(self.module), self.name)
        return by_fla(kernel, (q.to(dtype), k.to(dtype), v.to(dtype), *gates), S, segments)


def refusal(dtype: torch.dtype, S: Tensor) -> str | None:
    """Why fla's kernels cannot serve a run in this dtype, with states like S; None if they can."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot trace fla: --train.compile false uses it"
    if dtype not in NARROW:
        return f"the run is in {dtype}, and fla would round its products to TF32"
    if S.shape[-2] > LARGEST_KEY:
        return f"keys are longer than {LARGEST_KEY}"
    if importlib.util.find_spec("fla") is None:
        return "fla is not installed: pip install 'unitsphere[fla]'"
    return None


def wrong_gradients(device: torch.device, decay: Tensor) -> str | None:
    """Why fla has no gradients of this decay on the device; None if it has.

    On Hopper with Triton 3.4 to 3.7.0 fla 0.6 raises an error in the backward pass of a decay per
    head, [B, H, T]: Triton compiles it wrongly (issue 640 of fla-org/flash-linear-attention).
    """
    if decay.ndim == 4 or device.type != "cuda" or torch.version.hip is not None:
        return None
    hopper = torch.cuda.get_device_capability(device)[0] == 9
    if hopper and TorchVersion("3.4") <= TorchVersion(version("triton")) < TorchVersion("3.7.1"):
        return "Triton before 3.7.1 computes its gradients wrongly on this GPU: upgrade triton"
    return None


def by_fla(
    kernel: Callable[..., tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, ...],
    S: Tensor,
    segments: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """o and the last S of one of fla's functions, whose axes are [B, T, H, …].

    It takes several texts as one row: each segment [B, T] becomes such a text, of which the first
    of a row continues the row's state, and the last is where the next call continues.
    """
    B, H, T = inputs[2].shape[:3]
    across: list[Any] = [x.expand(B, H, *x.shape[2:]).transpose(1, 2) for x in inputs]
    if segments is None:
        o, S = kernel(*across, scale=1.0, initial_state=S, output_final_state=True)
        return o.transpose(1, 2).to(S.dtype), S
    begins = (
        F.pad(segments[:, 1:] != segments[:, :-1], (1, 0), value=True).flatten().nonzero()[:, 0]
    )
    first = (begins % T == 0).nonzero()[:, 0]
    last = torch.cat([first[1:], first.new_tensor([len(begins)])]) - 1
    states = S.new_zeros(len(begins), *S.shape[1:]).index_copy(0, first, S)
    o, states = kernel(
        *(x.flatten(0, 1)[None] for x in across),
        scale=1.0,
        initial_state=states,
        output_final_state=True,
        cu_seqlens=F.pad(begins, (0, 1), value=B * T),
    )
    return o[0].unflatten(0, (B, T)).transpose(1, 2).to(S.dtype), states[last]
