"""From how many tokens on it is cheaper to scale the weight than the outputs (ops/linear.py).

    .venv/bin/python benchmarks/folding.py

Forward and backward of a linear map d -> 4d with a learned scale of its outputs, folded and not,
in turns, on one thread: the median of the rounds' ratios. Prints a Markdown table.
"""

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.bench.measure import timed
from unitsphere.ops.linear import scale_rows
from unitsphere.report.render.text import markdown_table

WIDTHS = (128, 256, 512)
TOKENS_PER_WIDTH = (0.25, 0.5, 1, 2, 5, 10)
ROUNDS = 21


def ratio(d: int, tokens: int) -> float:
    """Time folded ÷ time not folded."""
    x, gradient = torch.randn(tokens, d, requires_grad=True), torch.randn(tokens, 4 * d)
    weight = torch.randn(4 * d, d, requires_grad=True)
    scale = torch.randn(4 * d, requires_grad=True)

    def backward(y: Tensor) -> None:
        torch.autograd.grad(y, (x, weight, scale), gradient)

    forms = (
        lambda: backward(F.linear(x, scale_rows(weight, scale))),
        lambda: backward(F.linear(x, weight) * scale),
    )
    rounds = [[timed(form, 1, x.device)[0] for form in forms] for _ in range(ROUNDS + 2)][2:]
    return statistics.median(folded / apart for folded, apart in rounds)


def main() -> None:
    torch.set_num_threads(1)
    rows = [
        [f"{d}", *(f"{ratio(d, round(share * d)):.2f}" for share in TOKENS_PER_WIDTH)]
        for d in WIDTHS
    ]
    print(markdown_table(["d", *(f"{share:g}·d tokens" for share in TOKENS_PER_WIDTH)], rows))


if __name__ == "__main__":
    main()
