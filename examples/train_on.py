"""Train a run of `unitsphere train` further in your own loop.

    python examples/train_on.py runs/quickstart/ngpt

`load` returns the model, the tokenizer and the run's config. The optimizer is new. To resume the
optimizer bit for bit, use `unitsphere train`.
"""

import argparse
import sys
from pathlib import Path

import torch

import unitsphere


def main(run: str, steps: int = 50):
    """Train on; the model."""
    model, tokenizer, config = unitsphere.load(run, device="cpu", trainable=True)
    context = config.data.context
    ids = torch.tensor(tokenizer.encode(Path(argparse.__file__).read_text()))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.optim.lr / 10, betas=(0.9, 0.95))
    unitsphere.constrain(model, optimizer)
    for step in range(steps):
        starts = torch.randint(len(ids) - context, (4,))
        rows = torch.stack([ids[start : start + context + 1] for start in starts])
        loss = model.loss(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    return model


if __name__ == "__main__":
    main(sys.argv[1])
