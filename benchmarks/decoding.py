"""What the next token costs after a long text: time, what is kept of the text, and peak memory.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py > docs/results/hybrids/decoding.json

nGPT of the quickstart's size, with attention, with Gated DeltaNet in three layers of four, and in
all. Weights are those of the start: time does not depend on them. `unitsphere bench generate` times
tokens too; here each case has a process of its own, so that its peak memory is its own, and the
arms take turns in rounds.
"""

import json
import multiprocessing
import resource
import statistics
import sys
import time
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from unitsphere.inference.decode import last_logits
from unitsphere.models.registry import build
from unitsphere.training.device import environment

SIZES = {"vocab_size": 1024, "d_model": 128, "n_layers": 4, "n_heads": 2}
ARMS = {"attention": "attention", "hybrid": "gdn gdn gdn attention", "gdn": "gdn"}
LENGTHS = (1024, 4096, 16384, 32768)
NEW = 64
ROUNDS = 3


def measured(mixers: str, length: int) -> dict[str, float]:
    """Reading `length` tokens and generating NEW more, one at a time; one text."""
    torch.set_num_threads(1)
    model = build("ngpt", mixers=mixers, **SIZES).eval()
    tokens = torch.randint(SIZES["vocab_size"], (1, length), generator=torch.manual_seed(0))
    cache, times = model.new_cache(1, length + NEW), []
    with torch.inference_mode():
        for _ in range(NEW + 1):
            start = time.perf_counter()
            logits = last_logits(model, tokens, cache, None)
            tokens = logits.argmax(-1, keepdim=True)
            times.append(time.perf_counter() - start)
    kept = tree_leaves([vars(layer.mixer) for layer in cache.layers])
    return {
        "prompt_s": times[0],
        "token_ms": 1e3 * statistics.median(times[1:]),
        "kept_bytes": sum(x.nbytes for x in kept if isinstance(x, torch.Tensor)),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def in_a_process(arm: str, length: int) -> dict[str, float]:
    """One measurement, in a process that ends after it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (ARMS[arm], length))


def main() -> None:
    """Print one JSON document: the median of the rounds for each arm and length."""
    found: dict[str, dict[int, list[dict[str, float]]]] = {arm: {} for arm in ARMS}
    for _ in range(ROUNDS):
        for length in LENGTHS:
            for arm in ARMS:
                found[arm].setdefault(length, []).append(in_a_process(arm, length))
                print(arm, length, found[arm][length][-1], file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = []
    for arm, lengths in found.items():
        for length, rounds in lengths.items():
            medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            rows.append({"arm": arm, "mixers": ARMS[arm], "context": length, **medians})
    here = environment(torch.device("cpu"))
    print(
        json.dumps({"environment": here, "sizes": SIZES, "rounds": ROUNDS, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
