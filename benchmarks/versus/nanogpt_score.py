"""Prints a nanoGPT checkpoint's loss on a whole validation split, in windows side by side.

Runs in nanoGPT's folder and environment: python nanogpt_score.py CHECKPOINT_FOLDER VAL_BIN
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path.cwd()))
from model import GPT, GPTConfig


def main() -> None:
    """Load, score, print."""
    saved = torch.load(Path(sys.argv[1]) / "ckpt.pt", map_location="cpu", weights_only=True)
    with redirect_stdout(sys.stderr):  # it prints its size
        model = GPT(GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    model.eval()
    tokens = np.fromfile(sys.argv[2], dtype=np.uint16).astype(np.int64)
    context = saved["model_args"]["block_size"]
    count = (len(tokens) - 1) // context
    inputs = torch.from_numpy(tokens[: count * context]).view(count, context)
    targets = torch.from_numpy(tokens[1 : count * context + 1]).view(count, context)
    with torch.no_grad():
        losses = [
            model(x, y)[1].item() * len(x)
            for x, y in zip(inputs.split(64), targets.split(64), strict=True)
        ]
    print(sum(losses) / count)


if __name__ == "__main__":
    main()
