"""Inputs of the recurrent mixers' two forms."""

import torch

from unitsphere.models.mixers import gdn, gla, mamba2

FILES = {"gdn": gdn, "mamba2": mamba2, "gla": gla}


def inputs(
    mixer: str, T: int, B: int = 2, H: int = 3, K: int = 5, V: int = 7
) -> list[torch.Tensor]:
    """q, k, v, the log decay, gdn's β, and a state."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def decay(*shape):  # most forget little, some nearly all
        return -8 * torch.rand(shape, generator=generator, dtype=torch.float64).pow(4)

    S, v = normal(B, H, K, V), normal(B, H, T, V)
    if mixer == "mamba2":
        return [normal(B, 1, T, K), normal(B, 1, T, K), v, decay(B, H, T), S]
    q, k = (torch.nn.functional.normalize(normal(B, H, T, K), dim=-1) for _ in "qk")
    if mixer == "gla":
        return [q, k, v, decay(B, H, T, K), S]
    return [q, k, v, decay(B, H, T), normal(B, H, T).sigmoid(), S]
