"""nanochat's base_train on given tokens, or the loss of what it saved.

Runs in nanochat's folder and environment:

    python nanochat_peer.py TOKENS CONTEXT OUT STEPS RATE [OPTIONS]  # trains on TOKENS/train.bin
    python nanochat_peer.py TOKENS CONTEXT OUT                       # the loss on all of val.bin

base_train tokenizes and packs documents of its own. Its tokenizer and its loader are replaced, so
that it reads the tokens that every contender reads; all else but sizes, length, rates and precision
is its own, but for OPTIONS of base_train. --seed among them is in place of its own, which
base_train has no option for.
"""

import argparse
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from windows import fast_bf16, pairs, vocabulary, windows

LAYERS, HEAD, ROWS = 4, 64, 8
WIDTH = 128
RATES = {"matrix": 0.02, "embedding": 0.3, "unembedding": 0.008, "scalar": 0.5}
"""Its own. RATE is that of the matrices; the others keep their ratio to it."""


class Vocabulary:
    """What base_train asks a tokenizer for."""

    def __init__(self, tokens: Path) -> None:
        self.size = vocabulary(tokens)

    def get_vocab_size(self) -> int:
        """How many tokens there are."""
        return self.size


def batches(rows: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, Any]]:
    """Rows in a random order, without end, in the form of nanochat's loader."""
    epoch = 0
    while True:
        epoch += 1
        for chosen in torch.randperm(len(rows)).split(size):
            if len(chosen) == size:
                state = {"epoch": epoch, "pq_idx": 0, "rg_idx": 0}
                yield *pairs(rows[chosen]), state


def seeded(compute_init: Callable[[str], Any], seed: int) -> Callable[[str], Any]:
    """compute_init, which seeds torch, with another seed."""

    def initialize(device: str) -> Any:
        found = compute_init(device)
        torch.manual_seed(seed)
        return found

    return initialize


def train(tokens: Path, context: int, steps: int, rate: float, options: list[str]) -> None:
    """Run base_train with its own settings but for the options."""
    import nanochat.common
    import nanochat.dataloader
    import nanochat.tokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    known, options = parser.parse_known_args(options)
    if known.seed is not None:
        nanochat.common.compute_init = seeded(nanochat.common.compute_init, known.seed)
    words, rows = Vocabulary(tokens), windows(tokens / "train.bin", context)
    loader = "tokenizing_distributed_data_loader_with_state_bos_bestfit"
    setattr(nanochat.dataloader, loader, lambda *_, **__: batches(rows, ROWS))
    nanochat.tokenizer.get_tokenizer = lambda: words
    nanochat.tokenizer.get_token_bytes = lambda device: None
    given = {
        "depth": LAYERS, "aspect-ratio": WIDTH // LAYERS, "head-dim": HEAD,
        "window-pattern": "L", "max-seq-len": context, "device-batch-size": ROWS,
        "total-batch-size": ROWS * context, "num-iterations": steps, "eval-every": -1,
        "core-metric-every": -1, "sample-every": -1, "device-type": "cpu", "model-tag": "peer",
    } | {f"{role}-lr": rate / RATES["matrix"] * own for role, own in RATES.items()}  # fmt: skip
    sys.argv[1:] = [f"--{name}={value}" for name, value in given.items()] + options
    runpy.run_module("scripts.base_train", run_name="__main__", alter_sys=True)


def score(tokens: Path, context: int, out: Path) -> None:
    """Print the mean over all windows of the validation split."""
    from nanochat.gpt import GPT, GPTConfig

    folder = out / "base_checkpoints" / "peer"
    meta = json.loads(max(folder.glob("meta_*.json")).read_text())
    weights = torch.load(max(folder.glob("model_*.pt")), map_location="cpu", weights_only=True)
    model = GPT(GPTConfig(**meta["model_config"]))
    model.init_weights()
    model.load_state_dict(weights, assign=True)
    model.eval()
    rows = windows(tokens / "val.bin", context)
    with torch.no_grad():
        losses = [model(*pairs(part)).item() * len(part) for part in rows.split(64)]
    print(sum(losses) / len(rows))


if __name__ == "__main__":
    place, length, saved, *rest = sys.argv[1:]
    os.environ["NANOCHAT_BASE_DIR"] = saved
    os.environ["NANOCHAT_DTYPE"] = "bfloat16" if fast_bf16() else "float32"
    sys.path.insert(0, str(Path.cwd()))
    if rest:
        train(Path(place), int(length), int(rest[0]), float(rest[1]), rest[2:])
    else:
        score(Path(place), int(length), Path(saved))
