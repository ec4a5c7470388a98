"""Prints a nanoGPT checkpoint's loss on a whole validation split, in windows side by side.

Runs in nanoGPT's folder and environment: python nanogpt_score.py CHECKPOINT_FOLDER VAL_BIN
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from windows import pairs, windows

sys.path.insert(0, str(Path.cwd()))
from model import GPT, GPTConfig


def main() -> None:
    saved = torch.load(Path(sys.argv[1]) / "ckpt.pt", map_location="cpu", weights_only=True)
    with redirect_stdout(sys.stderr):  # it prints its size
        model = GPT(GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    model.eval()
    rows = windows(Path(sys.argv[2]), saved["model_args"]["block_size"])
    with torch.no_grad():
        losses = [model(*pairs(part))[1].item() * len(part) for part in rows.split(64)]
    print(sum(losses) / len(rows))


if __name__ == "__main__":
    main()
