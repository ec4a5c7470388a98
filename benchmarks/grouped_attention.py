"""SDPA with groups (`enable_gqa`) against k and v repeated for every head of queries.

    OMP_NUM_THREADS=1 python benchmarks/grouped_attention.py

Both in turn, in rounds; the median of each round's ratio, above 1 where groups are faster.
"""

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from unitsphere.bench.measure import timed

ROUNDS = 15
CASES = [  # batch, H, H_kv, queries, keys, d_k
    (8, 4, 1, 256, 256, 64),
    (8, 8, 2, 512, 512, 32),
    (2, 8, 2, 1024, 1024, 64),
    (1, 8, 2, 1, 1024, 64),
    (16, 8, 2, 1, 256, 64),
]


def heads(x: Tensor, times: int) -> Tensor:
    """Each head `times` times in a row, [batch, H_kv·times, time, d_k]."""
    return x.repeat_interleave(times, dim=1)


def ratio(case: tuple[int, ...], masked: bool, backward: bool, device: torch.device) -> float:
    """Time with k and v repeated ÷ time with groups."""
    batch, H, H_kv, n_queries, n_keys, d_k = case
    shapes = [(batch, n_queries, H, d_k), *[(batch, n_keys, H_kv, d_k)] * 2]
    q, k, v = (torch.randn(s, device=device).transpose(1, 2) for s in shapes)
    for x in (q, k, v):
        x.requires_grad_(backward)
    mask = torch.ones(n_queries, n_keys, device=device).tril(n_keys - n_queries).bool()
    how = {"attn_mask": mask if masked else None, "is_causal": not masked and n_queries > 1}

    def call(grouped: bool) -> None:
        keys, values = (k, v) if grouped else (heads(k, H // H_kv), heads(v, H // H_kv))
        out = F.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped, **how)
        if backward:
            torch.autograd.grad(out.sum(), (q, k, v))

    found = []
    for number in range(ROUNDS + 1):
        times = {
            g: timed(lambda g=g: call(g), 3, device) for g in (bool(number % 2), number % 2 == 0)
        }
        found.append(statistics.median(times[False]) / statistics.median(times[True]))
    return statistics.median(found[1:])  # the first round warms up


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    print("| batch, H, H_kv, queries, keys, d_k | causal | + backward | mask | + backward |")
    print("|---|---:|---:|---:|---:|")
    for case in CASES:
        cells = [
            "" if backward and case[3] == 1 else f"{ratio(case, masked, backward, device):.2f}"
            for masked in (False, True)
            for backward in (False, True)
        ]
        print("| " + " | ".join([", ".join(map(str, case)), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
