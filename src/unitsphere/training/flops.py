"""Floating-point operations of training, and what devices can do, for the model FLOPs utilisation.

A token costs 6 operations for each weight that multiplies it (2 forward, 4 backward), and
attention 12·L·d·T for a context of T tokens, half of that where it is causal: as PaLM counts (arXiv
2204.02311, App. B), without the half that a causal model masks, nor what a window hides; what
`data.document_mask` hides depends on the text and is counted. Projections, norms and scales,
which are linear in d, are left out too, so that all architectures are measured by the same useful
work.
"""

import torch

from unitsphere.models.constraint import roles
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import Precision

PEAK_BF16 = {
    "B200": 2250e12,  # NVIDIA B200 and GB200
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,  # SXM
    "A100": 312e12,
    "L40S": 362e12,
}
"""Dense bf16 operations a second by a part of the GPU's name, from the makers' data sheets."""


WITHIN = {"clm": 6, "mlm": 12, "seq2seq": 18}
"""Operations of attention within sequences by L·d·T and objective: half of it seen, all of it, or
an encoder's whole attention and a decoder's half."""
ACROSS = {"clm": 0, "mlm": 0, "seq2seq": 12}
"""Those of a decoder's attention across, all of it seen."""


def flops_per_token(model: Transformer, context: int) -> int:
    """Operations of one training token, forward and backward, in sequences of `context` tokens.

    With seq2seq a token of the target together with one of a source of the same length.
    """
    role = roles(model)
    tied = "head" not in role.values()
    multiplied = {"matrix", "head"} | ({"embedding"} if tied else set())
    weights = sum(p.numel() for name, p in model.named_parameters() if role[name] in multiplied)
    reach = min(model.config.window or context, context) / context
    share = reach * (2 - reach)  # of the pairs of positions, those less than a window apart
    attention = share * WITHIN[model.objective] + ACROSS[model.objective]
    return 6 * weights + round(attention * model.config.n_layers * model.config.d_model * context)


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Peak operations a second of the device in that precision, or None where it is not known.

    That of bf16 for fp8 too: attention and the head stay in bf16, so one definition serves both.
    """
    if device.type != "cuda" or precision == "fp32":
        return None
    return peak_of_chip(torch.cuda.get_device_name(device))


def peak_of_chip(name: str) -> float | None:
    """Peak bf16 operations a second of a GPU by the name that its driver gives, if it is known."""
    return next((peak for part, peak in PEAK_BF16.items() if part in name), None)
