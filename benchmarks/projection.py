"""The cost of the constraint on a CPU: the time it adds to a fused Adam step ÷ that step.

    .venv/bin/python benchmarks/projection.py

The matrices of nGPT's (sphere) and anGPT's (ball) layers, 12.6M parameters: torch's fused Adam
without and with `constrain`, in turns, on one thread. Prints a Markdown table with the median of
the rounds' ratios minus one, and its 95% interval.
"""

import copy

import torch

from unitsphere import constrain
from unitsphere.bench.measure import ratios, timed
from unitsphere.models.registry import build
from unitsphere.report.render.text import markdown_table

ROUNDS = 41


def measure(name: str) -> list[str]:
    """A row of the table: parameters, ms of both, what the constraint adds."""
    blocks = build(name, d_model=512, n_layers=3, n_heads=8, vocab_size=64)
    for weight in blocks.parameters():
        weight.requires_grad_(weight.dim() == 2 and weight.shape[0] != 64)
    free, held = (adam(copy.deepcopy(blocks), constrained) for constrained in (False, True))
    cpu = torch.device("cpu")
    rounds = [
        (timed(free.step, 1, cpu)[0], timed(held.step, 1, cpu)[0]) for _ in range(ROUNDS + 3)
    ][3:]
    alone, both = zip(*rounds, strict=True)
    found = ratios(both, alone)
    count = sum(weight.numel() for group in held.param_groups for weight in group["params"])
    return [
        name,
        f"{count:,}",
        f"{sorted(alone)[ROUNDS // 2]:.1f}",
        f"{sorted(both)[ROUNDS // 2]:.1f}",
        f"{found.median - 1:.2f} ({found.low - 1:.2f}–{found.high - 1:.2f})",
    ]


def adam(model: torch.nn.Module, constrained: bool) -> torch.optim.Adam:
    """Adam over what is trained of a model, with gradients to step by."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True)
    if constrained:
        constrain(model, optimizer)
    return optimizer


def main() -> None:
    torch.set_num_threads(1)
    headers = ["model", "parameters", "Adam, ms", "with the constraint, ms", "added (95%)"]
    print(markdown_table(headers, [measure(name) for name in ("ngpt", "angpt")]))


if __name__ == "__main__":
    main()
