"""What the constraint costs beside Adam on a CPU: the projection ÷ the fused step.

    .venv/bin/python benchmarks/projection.py

The matrices of nGPT's (sphere) and anGPT's (ball) layers, 12.6M parameters, in turns with torch's
fused Adam on the same tensors, one thread: the median of the rounds' ratios, and its 95% interval.
Prints a Markdown table.
"""

import torch

from unitsphere.bench.statistics import ratios
from unitsphere.bench.steps import timed
from unitsphere.models.constraint import constraints
from unitsphere.models.registry import build
from unitsphere.report.table import markdown

ROUNDS = 41


def measure(name: str) -> list[str]:
    """A row of the table: parameters, ms of both, their ratio."""
    model = build(name, d_model=512, n_layers=3, n_heads=8, vocab_size=64)
    held = [
        (model.get_parameter(c.parameter), c)
        for c in constraints(model)
        if c.parameter.startswith("blocks")
    ]
    weights = [weight for weight, _ in held]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True)

    def project() -> None:
        for weight, constraint in held:
            constraint.project_(weight)

    cpu = torch.device("cpu")
    rounds = [
        (timed(optimizer.step, 1, cpu)[0], timed(project, 1, cpu)[0]) for _ in range(ROUNDS + 3)
    ][3:]
    adam, projection = zip(*rounds, strict=True)
    found = ratios(projection, adam)
    count = sum(weight.numel() for weight in weights)
    return [
        name,
        f"{count:,}",
        f"{sorted(adam)[ROUNDS // 2]:.1f}",
        f"{sorted(projection)[ROUNDS // 2]:.1f}",
        f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})",
    ]


def main() -> None:
    torch.set_num_threads(1)
    headers = ["model", "parameters", "Adam, ms", "projection, ms", "ratio (95%)"]
    print(markdown(headers, [measure(name) for name in ("ngpt", "angpt")]))


if __name__ == "__main__":
    main()
