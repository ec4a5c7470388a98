"""In which precision the peers that have a switch for it compute: as ours does by itself."""

import torch


def fast_bf16() -> bool:
    """Whether the processor has bf16 instructions."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
